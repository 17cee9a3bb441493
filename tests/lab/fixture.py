"""The fixture `lab`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from .lab import Lab
from .tools import why_not


def _skip(reason: str) -> NoReturn:
    pytest.skip(reason)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty lab: `a, b = lab.up(2)`, `lab.add(nat="gw")`. Skips where the machine cannot do it."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Lab(_skip) as laboratory:
        yield laboratory
