"""How ranks share the work: one module a strategy behind the interface in `base`, found here by name."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .base import Strategy

STRATEGIES = {"ddp": ("ddp", "DataParallelStrategy")}
"""Name -> module here, and class in it. Only the module that is used is loaded."""


def find(name: str) -> type[Strategy]:
    """The strategy of that name. Raises UsageError with the nearest names."""
    if name not in STRATEGIES:
        close = difflib.get_close_matches(name, STRATEGIES, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(STRATEGIES)}"
        raise UsageError(f"--strategy {name}: no such strategy; {hint}")
    module, cls = STRATEGIES[name]
    found: type[Strategy] = getattr(importlib.import_module(f".{module}", __package__), cls)
    return found
