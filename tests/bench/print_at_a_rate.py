"""Prints lines at a fixed rate, and writes to OUT how long it took: `print_at_a_rate.py OUT LINES RATE`."""

import json
import sys
import time
from pathlib import Path

BATCH = 1000


def main() -> None:
    out, lines, rate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    start, used = time.perf_counter(), time.process_time()
    for first in range(0, lines, BATCH):
        for number in range(first, first + BATCH):
            sys.stdout.write(f"step {number:8} loss 2.9148 tok/s 411920 lr 3.00e-04 grad 0.912\n")
        sys.stdout.flush()
        ahead = start + (first + BATCH) / rate - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
    result = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
    part = out.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.rename(out)


if __name__ == "__main__":
    main()
