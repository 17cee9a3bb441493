"""Prints what a log must keep as it is: binary, a long line, carriage returns, no newline at the end."""

import os
import sys

os.write(1, bytes(range(256)))
print("x" * 300_000)
print("10%\r20%\r30%", end="", flush=True)
print("\x1b[31mred\x1b[0m \x1b]0;title\x07", file=sys.stderr)
os.system("echo from a child process; echo and its errors >&2")
sys.stdout.write("no newline at the end")
