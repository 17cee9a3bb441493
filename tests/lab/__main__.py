"""`python -m tests.lab`, from the checkout: imports the lab as the tests do, and starts it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.cli import main

sys.exit(main())
