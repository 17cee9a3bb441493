"""The tests that need Horovod or TensorFlow, in environments that are built by our own recipes and kept.

    python tests/heavy.py FOLDER [ARGUMENT OF PYTEST...]

FOLDER is what ENCAMP_HOME is on a host: environments are found there again as long as what they were made
from is the same. Horovod's is made from this Python. TensorFlow's has no torch: it is made from one with
pytest alone, in which the tests of training with TensorFlow run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIABLES = {"horovod": "ENCAMP_TESTS_HOROVOD", "tensorflow": "ENCAMP_TESTS_TENSORFLOW"}
PYTEST = ("pytest", "pytest-timeout")
NONCE = "0123456789abcdef"


def with_pytest(home: str) -> str:
    """A Python that has what runs tests, and no torch."""
    folder = Path(home) / "python-{}.{}.{}".format(*sys.version_info)
    python, marker = folder / "bin" / "python", folder / "complete"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        base = Path(sys.base_prefix) / "bin" / "python3"
        subprocess.run([base, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PYTEST], check=True)
        marker.touch()
    return str(python)


def build(home: str, recipe: str, base: str) -> str:
    """The Python of the environment. Exits when it cannot be built."""
    builder = subprocess.Popen(
        [sys.executable, "-m", "agent", "build-env", NONCE, home],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdin is not None and builder.stdout is not None
    asked = {"python": base, "setup": {"recipe": recipe}}
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
        base = with_pytest(home) if recipe == "tensorflow" else sys.executable
        os.environ[variable] = build(home, recipe, base)
        took[f"environment of {recipe}"] = time.monotonic() - began
    codes = []
    for name, python, words in (
        ("tests", sys.executable, ["-m", "heavy", "tests", "--ignore", "tests/tensorflow"]),
        ("tests inside TensorFlow's", os.environ[VARIABLES["tensorflow"]], ["tests/tensorflow"]),
    ):
        began = time.monotonic()
        done = subprocess.run([python, "tests/tries.py", *words, *arguments], cwd=ROOT, check=False)
        codes.append(done.returncode)
        took[name] = time.monotonic() - began
    print("heavy: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items()))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
