"""The tests that need Horovod or TensorFlow, in environments that are built by our own recipes and kept.

    python tests/heavy.py FOLDER [ARGUMENT OF PYTEST...]

FOLDER is what ENCAMP_HOME is on a host: environments are found there again as long as what they were made
from is the same. Those for TensorFlow are made from this Python as well, so that they have pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIABLES = {"horovod": "ENCAMP_TESTS_HOROVOD", "tensorflow": "ENCAMP_TESTS_TENSORFLOW"}
NONCE = "0123456789abcdef"


def build(home: str, recipe: str) -> str:
    """The Python of the environment. Exits when it cannot be built."""
    builder = subprocess.Popen(
        [sys.executable, "-m", "agent", "build-env", NONCE, home],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdin is not None and builder.stdout is not None
    asked = {"python": sys.executable, "setup": {"recipe": recipe}}
    builder.stdin.write(json.dumps(asked) + "\n")
    builder.stdin.flush()
    for line in builder.stdout:
        told = json.loads(line) if line.startswith("{") else {}
        if "failed" in told:
            sys.exit(f"{recipe}: {told['failed']['message']}\n  {told['failed']['hint']}")
        if "built" in told:
            return str(told["built"]["python"])
        for text in told.get("output", "").splitlines():
            if text.startswith(("Note", "Built", "Successfully")):
                print(f"{recipe}: {text}", flush=True)
    sys.exit(f"{recipe}: the build ended without a word")


def main(folder: str, arguments: list[str]) -> int:
    """Build, test, and say how long each took."""
    home = str(Path(folder).resolve())
    Path(home).mkdir(parents=True, exist_ok=True)
    took = {}
    for recipe, variable in VARIABLES.items():
        began = time.monotonic()
        os.environ[variable] = build(home, recipe)
        took[f"environment of {recipe}"] = time.monotonic() - began
    codes = []
    for name, python, words in (
        ("tests", sys.executable, ["-m", "heavy", "tests", "--ignore", "tests/tensorflow"]),
        ("tests inside TensorFlow's", os.environ[VARIABLES["tensorflow"]], ["tests/tensorflow"]),
    ):
        began = time.monotonic()
        done = subprocess.run([python, "-m", "pytest", *words, *arguments], cwd=ROOT, check=False)
        codes.append(done.returncode)
        took[name] = time.monotonic() - began
    print("heavy: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items()))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
