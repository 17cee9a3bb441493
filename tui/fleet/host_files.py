"""Files in the folder of a run on its host, as the agent tells of them; nothing that it says is believed.

A name is checked before it is part of any path here: it is one component, and a terminal can show it.
"""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent import wire

from .bulk import PIECE, Bulk
from .errors import EncampError, HostError, Unreachable, UsageError
from .session import Session

MAX_FILES = 100_000
"""Entries of one download."""

MAX_DEPTH = 64
"""Folders inside one another."""

MAX_SIZE = 2**50
"""Bytes of one file."""

HASH_BYTES_PER_SECOND = 10e6
"""The slowest disk whose hashes are waited for."""

_UNSHOWABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})

KINDS = {
    "link": "a link that leads out of the run's folder, or to a folder",
    "other": "neither a plain file nor a folder",
    "gone": "was removed meanwhile",
}


@dataclass(frozen=True, slots=True)
class HostFile:
    """One file: where it is in the run's folder, and where under the destination, as components."""

    path: str
    parts: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """What is not fetched, and why."""

    path: str
    reason: str


class Nonsense(HostError):
    """The agent answered in a way that makes no sense."""

    def __init__(self, session: Session) -> None:
        super().__init__(f"The agent on {session.name} answers in a way that makes no sense.")


class HostFiles:
    """What is asked of the agent about the folder of one run."""

    def __init__(self, session: Session, run: str) -> None:
        self.session = session
        self.run = run
        self._seen = 0
        self._bulk: Bulk | None = None
        self._opening = asyncio.Lock()
        self._no_bulk = False

    async def close(self) -> None:
        """End the command that sends files."""
        if self._bulk is not None:
            await self._bulk.close()

    async def piece(self) -> int:
        """How many bytes to ask for at once: more where the host runs a command for it."""
        async with self._opening:
            if self._bulk is not None and self._bulk.broken:
                await self._bulk.close()
                self._bulk = None
            if self._bulk is None and not self._no_bulk:
                try:
                    self._bulk = await Bulk.open(self.session)
                except Unreachable:
                    raise
                except HostError:
                    self._no_bulk = True  # some hosts allow one command at a time: the agent does it as well
        return wire.MAX_CHUNK if self._bulk is None else PIECE

    async def find(self, path: str) -> tuple[list[HostFile], list[Skipped], bool]:
        """All files at or below `path`, what there cannot be fetched, and whether `path` is a folder.

        Raises RequestRefused (`no-file`), HostError, EncampError when there are too many.
        """
        files: list[HostFile] = []
        skipped: list[Skipped] = []
        is_folder = await self._walk(path, (), files, skipped)
        return files, skipped, is_folder

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes, at most `piece()`; fewer only where the file ends."""
        if self._bulk is not None:
            return await self._bulk.read(self.run, path, offset, length)
        answer = await self._ask("file_read", {"path": path, "offset": offset, "length": length})
        try:
            data = wire.payload(answer["data"])
        except (KeyError, TypeError, wire.WireError):
            raise Nonsense(self.session) from None
        if len(data) > length:
            raise Nonsense(self.session)
        return data

    async def sha256(self, path: str, length: int) -> str:
        """The hash of the first `length` bytes; empty where there are not so many."""
        patience = 60 + length / HASH_BYTES_PER_SECOND
        answer = await self._ask("file_hash", {"path": path, "length": length}, patience)
        return str(answer.get("sha256")) if answer.get("length") == length else ""

    async def _walk(
        self, path: str, parts: tuple[str, ...], files: list[HostFile], skipped: list[Skipped]
    ) -> bool:
        folder, entries = await self.entries(path)
        for name, kind, size in entries:
            inner = f"{path}/{name}" if folder else path
            inner_parts = (*parts, name) if folder else parts
            reason = unfit(name) if folder else None
            self._seen += 1
            if self._seen > MAX_FILES:
                raise EncampError(f"{path} has over {MAX_FILES} files.", "Fetch a folder in it.")
            if reason is None and kind == "folder" and len(parts) >= MAX_DEPTH:
                reason = "too deep"
            if reason is None and kind == "folder" and folder:
                await self._walk(inner, inner_parts, files, skipped)
            elif reason is None and kind == "file":
                files.append(HostFile(inner, inner_parts, size))
            else:
                skipped.append(Skipped(inner, reason or KINDS.get(kind, KINDS["other"])))
        return folder

    async def entries(self, path: str) -> tuple[bool, list[tuple[str, str, int]]]:
        """Whether `path` is a folder, and the name, kind and bytes of all that is in it, or of itself.

        Raises RequestRefused (`no-file`), HostError, EncampError when there are too many.
        """
        entries: list[tuple[str, str, int]] = []
        start: int | None = 0
        folder = False
        while start is not None:
            answer = await self._ask("file_list", {"path": path, "start": start})
            try:
                folder, following = answer["folder"], answer["next"]
                page = [(entry["name"], entry["kind"], entry["size"]) for entry in answer["entries"]]
            except (KeyError, TypeError):
                raise Nonsense(self.session) from None
            if not (
                type(folder) is bool
                and (following is None or (type(following) is int and following > start))
                and all(
                    isinstance(name, str)
                    and isinstance(kind, str)
                    and type(size) is int
                    and 0 <= size <= MAX_SIZE
                    for name, kind, size in page
                )
                and (folder or len(page) == 1)
            ):
                raise Nonsense(self.session)
            entries += page
            if len(entries) > MAX_FILES:
                raise EncampError(f"{path} has over {MAX_FILES} files.", "Fetch a folder in it.")
            start = following
        return folder, entries

    async def _ask(self, method: str, params: Mapping[str, Any], timeout: float = 60) -> dict[str, Any]:
        return await self.session.request(method, {"run": self.run, **params}, timeout)


def clean_path(text: str) -> str:
    """A path in the run's folder as the user typed it, in its plain form. Raises UsageError."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or not all(map(str.isprintable, parts)):
        raise UsageError(
            f"{text} is not a path in the run's folder.",
            "Give it from there on, such as: checkpoints/step-100",
        )
    return "/".join(parts) or "."


def unfit(name: str) -> str | None:
    """Why nothing here may be called `name`, or None when it may."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return "its name leads elsewhere"
    if any(unicodedata.category(char) in _UNSHOWABLE for char in name):
        return "its name has characters that cannot be shown"
    if len(os.fsencode(name)) > 255:
        return "its name is too long"
    return None
