"""What everything of a lab is called: names that say which process owns it, so that leftovers can be told."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import process

PREFIX = "encamp-lab-"
FOLDERS = Path("/tmp")
"""Not $TMPDIR: whoever cleans up has to find them."""

_NAME = re.compile(PREFIX + r"(?P<pid>\d+)-(?P<start>\d+)-\d+")
_LOCK = Path("/run/encamp-lab.lock")
_numbers = itertools.count(1)


class LabName(str):
    """The name of a lab, with which all that belongs to it begins."""

    @property
    def interface(self) -> str:
        """What the lab's only interface outside of its own namespaces is called: at most 15 letters."""
        pid, _, number = self.removeprefix(PREFIX).split("-")
        return f"ec{pid}x{number}"

    @property
    def folder(self) -> Path:
        """Where the lab keeps its files."""
        return FOLDERS / self

    @property
    def orphaned(self) -> bool:
        """Whether the process that owns it is gone."""
        pid, start, _ = self.removeprefix(PREFIX).split("-")
        return process.start_time(int(pid)) != int(start)


def new_name() -> LabName:
    """A name for a lab of this process."""
    pid = os.getpid()
    return LabName(f"{PREFIX}{pid}-{process.start_time(pid)}-{next(_numbers)}")


@contextmanager
def machine_lock() -> Iterator[None]:
    """Held while something free is looked for and taken, or removed: by one lab at a time."""
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lab_of(name: str) -> LabName | None:
    """The lab to which something belongs by its name."""
    match = _NAME.match(name)
    return LabName(match.group()) if match else None
