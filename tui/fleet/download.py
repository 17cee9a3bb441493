"""Fetching files of a run: in pieces, several on their way at once, verified, and going on where it stopped.

What was received lies beside its target as `.NAME.part` until its hash is right. Nothing is written outside
of the destination, and no link in it is followed.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import EncampError, HostError, Unreachable, UsageError
from .host_files import HostFile, HostFiles

MAX_WINDOW = 16
"""Pieces on their way at once, at most."""

QUICK_SECONDS, SLOW_SECONDS = 0.25, 0.5
"""Pieces that come faster allow one more on the way, slower ones take one away: telemetry waits as long."""

RETURN_SECONDS = 120.0
"""How long a host that was lost may take to come back before a download is given up."""

TRIES = 2
"""How often a file is fetched that does not have the right hash, because it was changed meanwhile."""

MAX_LOSSES = 3
"""Losses in a row between which nothing came, after which a download is given up."""

LOCAL_SLICE = 1024 * 1024


@dataclass(slots=True)
class Progress:
    """How far it is. `received` counts what came over the network, `done` also what was here already."""

    total: int
    done: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file that is here now."""

    file: HostFile
    target: Path
    sha256: str
    unchanged: bool
    """It was here before."""


class Download:
    """Files of one run to their targets. `shown` is called when there is progress."""

    def __init__(self, host: HostFiles, shown: Callable[[Progress], None] = lambda _: None) -> None:
        self._host = host
        self._shown = shown
        self._window = 2
        self.progress = Progress(0)

    async def run(self, root: Path, files: Sequence[HostFile], *, force: bool) -> list[Fetched]:
        """Fetch `files` to below `root`; a file without parts becomes `root` itself.

        Raises UsageError before anything is written when something else is in the way (unless `force`),
        HostError when the host is gone for long, EncampError when the disk is full.
        """
        self.progress = Progress(sum(file.size for file in files))
        targets = [(file, root.joinpath(*file.parts)) for file in files]
        same = await self._present(root, targets, force=force)
        fetched = []
        for file, target in targets:
            known = same.get(file.path)
            if known is not None:
                self._advance(file.size, 0)
                fetched.append(Fetched(file, target, known, True))
                continue
            try:
                fetched.append(Fetched(file, target, await self._fetch(file, root, target), False))
            except OSError as error:
                raise _local(error, target) from error
        return fetched

    async def _present(
        self, root: Path, targets: Sequence[tuple[HostFile, Path]], *, force: bool
    ) -> dict[str, str]:
        """The hashes of files that are here already. Raises UsageError for what is in the way."""
        same: dict[str, str] = {}
        others = []
        for file, target in targets:
            check_inside(root, target)
            if not target.exists():
                continue
            if target.is_file() and target.stat().st_size == file.size:
                here, there = await asyncio.gather(
                    asyncio.to_thread(_hash, target, file.size), self._host.sha256(file.path, file.size)
                )
                if here.hexdigest() == there:
                    same[file.path] = there
                    continue
            if target.is_dir() or not force:
                others.append(target)
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise UsageError(
                f"{others[0]}{more} exists here already and is another one.",
                "Nothing was fetched. Name another place, or overwrite it with --force.",
            )
        return same

    async def _fetch(self, file: HostFile, root: Path, target: Path) -> str:
        """Fetch one file and return its hash, through losses of the connection."""
        target.parent.mkdir(parents=True, exist_ok=True)
        check_inside(root, target)
        part = part_of(target)
        before = self.progress.done
        for _ in range(TRIES):
            found = await self._persist(file, part)
            if found is not None:
                part.replace(target)
                return found
            part.unlink()
            self.progress.done = before
        raise EncampError(
            f"{file.path} is being changed on the host: it has another hash each time.",
            "Fetch it when nobody writes to it.",
        )

    async def _persist(self, file: HostFile, part: Path) -> str | None:
        """`_attempt`, again after each loss of the connection, as long as that leads anywhere."""
        before = self.progress.done
        losses, reached = 0, -1
        while True:
            self.progress.done = before
            try:
                return await self._attempt(file, part)
            except Unreachable as error:
                losses = losses + 1 if self.progress.done <= reached else 1
                reached = max(reached, self.progress.done)
                try:
                    await self._host.session.connected(RETURN_SECONDS)
                except HostError as final:
                    hint = "What has come is kept: the same command goes on where it stopped."
                    raise HostError(final.message, f"{final.hint} {hint}".strip()) from error
                if losses == MAX_LOSSES:
                    raise

    async def _attempt(self, file: HostFile, part: Path) -> str | None:
        """Fetch what is missing of one file; its hash, or None when what came is not right."""
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            digest, offset = await self._resume(file, part, descriptor)
            self._advance(offset, 0)
            wanted = asyncio.ensure_future(self._host.sha256(file.path, file.size))
            try:
                await self._receive(file, descriptor, digest, offset)
                found = str(digest.hexdigest())
                return found if found == await wanted else None
            finally:
                await _forget([wanted])
        finally:
            os.close(descriptor)

    async def _resume(self, file: HostFile, part: Path, descriptor: int) -> tuple[Any, int]:
        """The hash so far and where to go on: what is here is kept when the host has the same."""
        size = os.fstat(descriptor).st_size
        if 0 < size <= file.size:
            here, there = await asyncio.gather(
                asyncio.to_thread(_hash, part, size), self._host.sha256(file.path, size)
            )
            if here.hexdigest() == there:
                return here, size
        os.ftruncate(descriptor, 0)
        return hashlib.sha256(), 0

    async def _receive(self, file: HostFile, descriptor: int, digest: Any, offset: int) -> None:
        length = await self._host.piece()
        pieces: deque[asyncio.Task[bytes]] = deque()
        asked = offset

        def ask() -> None:
            nonlocal asked
            while asked < file.size and len(pieces) < self._window:
                pieces.append(asyncio.ensure_future(self._piece(file.path, asked, length)))
                asked += length

        try:
            while offset < file.size:
                ask()
                # All that has come is written in one go: each change of threads may cost milliseconds.
                data = [await pieces.popleft()]
                while pieces and pieces[0].done():
                    data.append(pieces.popleft().result())
                ask()
                if any(len(piece) != length for piece in data[:-1]):
                    return  # it became shorter: its hash will not be right
                data[-1] = data[-1][: file.size - offset - length * (len(data) - 1)]
                await asyncio.to_thread(_write, descriptor, data, offset, digest)
                received = sum(map(len, data))
                offset += received
                self._advance(received, received)
                if offset < file.size and len(data[-1]) != length:
                    return
        finally:
            await _forget(pieces)

    async def _piece(self, path: str, offset: int, length: int) -> bytes:
        """One piece; how long it took says how many more may be on their way."""
        start = time.monotonic()
        data = await self._host.read(path, offset, length)
        seconds = time.monotonic() - start
        if seconds < QUICK_SECONDS:
            self._window = min(MAX_WINDOW, self._window + 1)
        elif seconds > SLOW_SECONDS:
            self._window = max(1, self._window - 1)
        return data

    def _advance(self, done: int, received: int) -> None:
        self.progress.done += done
        self.progress.received += received
        self._shown(self.progress)


def part_of(target: Path) -> Path:
    """Where `target` lies until it is whole."""
    name = f".{target.name}.part"
    if len(os.fsencode(name)) > 255:
        name = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()}.part"
    return target.with_name(name)


def check_inside(root: Path, target: Path) -> None:
    """Raises UsageError when a link on the way from `root` to `target` would lead elsewhere."""
    for path in (target, *target.parents):
        if path.is_symlink():
            raise UsageError(
                f"{path} is a link here.", "Nothing is written through links: take another place."
            )
        if path == root:
            return


async def _forget(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End what is no longer wanted; why it failed, if it did, is of no interest beside the first failure."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _hash(path: Path, length: int) -> Any:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (data := file.read(min(LOCAL_SLICE, length))):
            digest.update(data)
            length -= len(data)
    return digest


def _write(descriptor: int, pieces: Sequence[bytes], offset: int, digest: Any) -> None:
    for data in pieces:
        left = memoryview(data)
        while left:
            written = os.pwrite(descriptor, left, offset)
            offset += written
            left = left[written:]
        digest.update(data)


def _local(error: OSError, target: Path) -> EncampError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EncampError(
            f"No space is left here for {target}.",
            "Make room; the same command then goes on where it stopped.",
        )
    return EncampError(f"{error.filename or target} cannot be written: {error.strerror}.")
