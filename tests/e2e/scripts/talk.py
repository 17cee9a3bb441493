"""Prints numbered lines until it is told to stop: what gets lost on the way shows in the numbers."""

import os
import signal
import sys
import time

rank = os.environ["RANK"]
pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.002


def leave(*_):
    print(f"rank {rank} leaves", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
number = 0
while True:
    print(f"rank {rank} line {number} " + "x" * (number % 80), flush=True)
    number += 1
    time.sleep(pause)
