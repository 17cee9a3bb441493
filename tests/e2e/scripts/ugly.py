"""Prints what breaks careless readers: all byte values, escape sequences, a 10 MB line, no last newline."""

import os
import sys

os.write(1, bytes(range(256)) + b"\n")
os.write(1, b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1bc\x9b5n\n")
for _ in range(10):
    sys.stdout.write("y" * 1_000_000)
sys.stdout.write("\nend without a newline")
