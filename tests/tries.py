"""Run pytest, and where ENCAMP_TESTS_TRIES is 2 run again what did not pass.

    python tests/tries.py [ARGUMENT OF PYTEST...]

Real processes on a busy machine sometimes miss a deadline. A test has passed that passes in the second try,
which has few others beside it and its whole time. Many failures are no missed deadline, and a failure that
says WRONG is a wrong answer: those have no second try.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from second_try import FINAL, LEAVE_OUT, PASSED, RECORD, outcomes

AGAIN = (1, 3)
"""The exit codes of pytest after which a second try makes sense: tests failed, or pytest itself did."""
MANY = 10
"""More failures than these are not a matter of luck."""


def run(arguments: list[str], **environment: str) -> int:
    """The exit code of pytest."""
    child = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env={**os.environ, **environment})
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:  # it got the signal as well, and says how far it came
            continue


def main(arguments: list[str]) -> int:
    """The exit code of the first try, or of the second where there is one."""
    if os.environ.get("ENCAMP_TESTS_TRIES") != "2":
        return run(arguments)
    with tempfile.TemporaryDirectory(prefix="encamp-tests-") as folder:
        record = Path(folder) / "outcomes"
        record.touch()
        code = run(arguments, **{RECORD: str(record)})
        known = outcomes(record)
        failed = sorted(name for name, outcome in known.items() if outcome != PASSED)
        if code not in AGAIN or len(failed) > MANY or FINAL in known.values():
            return code
        print(f"\n{len(failed)} failed: a second try of what did not pass", *failed, sep="\n  ", flush=True)
        fewer = ["-n", "2"] if "-n" in arguments else []
        return run([*arguments, *fewer], **{LEAVE_OUT: str(record)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
