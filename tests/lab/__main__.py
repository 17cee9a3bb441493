"""`python -m tests.lab`, from the checkout: imports the lab as the tests do, and starts it."""

from __future__ import annotations

import sys
from pathlib import Path

INSTALL = "pip install -e '.[dev]'"

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from lab.cli import main
except ModuleNotFoundError as error:
    if error.name not in ("pytest", "asyncssh"):
        raise
    sys.exit(
        f"tests.lab: {sys.executable} has no {error.name}, which the lab shares with the tests: {INSTALL}"
    )

sys.exit(main())
