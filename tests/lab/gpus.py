"""GPUs on a host: the fake driver's library where the programs of its SSH sessions find it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fakes.nvml import FakeNvml, NoCompiler


def install(etc: Path, count: int, refuse: Callable[[str], NoReturn]) -> FakeNvml | None:
    """Put `count` GPUs into a host whose /etc/ssh is `etc`. What is returned changes them while it runs."""
    if not count:
        return None
    try:
        fake = FakeNvml(etc, count)
    except NoCompiler as error:
        refuse(str(error))
    shutil.copy(fake.library, etc / fake.library.name)
    return fake


def environment(fake: FakeNvml | None) -> tuple[str, ...]:
    """The variables that SSH sessions need for it."""
    return (f"FAKE_NVML_STATE=/etc/ssh/{fake.state_file.name}", "LD_LIBRARY_PATH=/etc/ssh") if fake else ()
