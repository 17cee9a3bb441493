"""The pictures for the README can be drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    names = ["run", "fleet-empty", "host-key"]
    command = [sys.executable, "-m", "tests.tui.gallery", str(tmp_path), *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    for name, word in zip(names, ("gpt-0412", "Three", "SHA256:"), strict=True):
        picture = (tmp_path / f"{name}.svg").read_text()
        assert picture.startswith("<svg")
        assert word in picture
