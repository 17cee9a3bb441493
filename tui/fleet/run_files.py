"""The folders of one run on all of its hosts, as one: what there is, and which host has it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import EncampError, HostError, RequestRefused
from .host_files import HostFile, HostFiles, Skipped, unfit
from .parallel import everywhere
from .session import Session

SORTED_BACKWARDS = "checkpoints"
"""The folder whose newest entries, those with the highest step, stand first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder. `size` is in bytes, 0 for a folder; `host` is the first that has it."""

    name: str
    is_folder: bool
    size: int
    host: str


@dataclass(frozen=True, slots=True)
class Found:
    """What there is at a path on one host, ready to be fetched from `host`."""

    host: HostFiles
    files: list[HostFile]
    skipped: list[Skipped]
    is_folder: bool


class RunFiles:
    """What can be fetched of one run. `sessions` are connected with its hosts, in the order of node ranks."""

    def __init__(self, sessions: Sequence[Session], run: str) -> None:
        self.sessions = tuple(sessions)
        self.run = run

    async def entries(self, folder: str) -> list[Entry]:
        """What is in a folder of the run on any host. Raises EncampError when no host says."""

        async def ask(session: Session) -> list[Entry]:
            is_folder, found = await HostFiles(session, self.run).entries(folder)
            if not is_folder:
                return []
            return [
                Entry(name, kind == "folder", size if kind == "file" else 0, session.name)
                for name, kind, size in found
                if kind in ("file", "folder") and unfit(name) is None
            ]

        self._check()
        outcome = await everywhere(self.sessions, ask)
        if not outcome.done:
            raise next(iter(outcome.failed.values()))
        merged: dict[str, Entry] = {}
        for session in self.sessions:
            for entry in outcome.done.get(session.name, ()):
                merged.setdefault(entry.name, entry)
        backwards = folder.rpartition("/")[2] == SORTED_BACKWARDS
        return sorted(merged.values(), key=lambda entry: _natural(entry.name), reverse=backwards)

    async def find(self, path: str) -> Found:
        """The files at or below `path`, on the first host that has any. Raises RequestRefused, HostError."""
        self._check()
        empty: Found | None = None
        refusal: EncampError | None = None
        for session in self.sessions:
            host = HostFiles(session, self.run)
            try:
                found = Found(host, *await host.find(path))
            except RequestRefused as error:
                if error.code != "no-file":
                    raise
                refusal = refusal or error
                continue
            if found.files:
                return found
            empty = empty or found  # every host has a folder for checkpoints; few have any in it
        if empty is None:
            assert refusal is not None, "there is a session, and it has found nothing"
            raise refusal
        return empty

    def _check(self) -> None:
        if not self.sessions:
            raise HostError("No host of the run is connected.", "Connect with c, and try again.")


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `step-9` before `step-10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]
