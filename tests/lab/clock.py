"""A host whose clock is wrong.

Time namespaces shift only the clocks that count from the boot. So a library that is loaded before all others
adds the offset to what programs read of the wall clock. The kernel's own stamps, such as those of files, and
programs without the C library are not shifted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .tools import run

_SOURCE = Path(__file__).with_name("clock.c")


def environment(etc: Path, offset: float, refuse: Callable[[str], NoReturn]) -> tuple[str, ...]:
    """The variables that SSH sessions need; `etc` is the host's /etc/ssh. Calls `refuse` without gcc."""
    if not offset:
        return ()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        refuse("a clock that is wrong needs a C compiler (gcc)")
    run(compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", etc / "clock.so", _SOURCE)
    return ("LD_PRELOAD=/etc/ssh/clock.so", f"LAB_CLOCK_OFFSET={offset}")
