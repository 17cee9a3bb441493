"""Brings a checkpoint from a host that has it to those that lack it, over the ranks' own connections.

All ranks take part: the first rank of the place that has the files sends, those of the places without them
receive, and all others learn in between how it goes, so that a fault anywhere ends it everywhere and nobody
waits longer than some pieces take. What comes in is written next to the checkpoints under another name, and
takes its place when all of it is there and has the sender's hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from .errors import CheckpointError
from .folder import MARKER, CheckpointFolder
from .places import Places

T = TypeVar("T")

PIECE = 4 * 1024**2
"""Bytes in one message; a host holds one at a time."""
PIECES = 64
"""Messages between two times at which all ranks tell each other how it goes."""
MOST_FILES = 100_000
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z|\.metadata\Z")


@dataclass(frozen=True, slots=True)
class File:
    """A file of a checkpoint, and its size in bytes."""

    name: str
    size: int


def manifest(path: Path) -> list[File]:
    """The files of the checkpoint at `path`, the marker last. Raises OSError."""
    files = [File(entry.name, entry.stat().st_size) for entry in os.scandir(path) if entry.is_file()]
    return sorted(files, key=lambda file: (file.name == MARKER, file.name))


def check(files: Sequence[File], free: int) -> None:
    """Raise CheckpointError for files that must not or cannot be written where `free` bytes are free."""
    names = [file.name for file in files]
    odd = next((name for name in names if not SAFE.match(name)), None)
    if odd is not None:
        raise CheckpointError(f"a file of it has an odd name, {odd[:100]!r}")
    if len(names) > MOST_FILES or len(set(names)) < len(names) or MARKER not in names:
        raise CheckpointError("its list of files makes no sense")
    size = sum(file.size for file in files)
    if size > free:
        raise CheckpointError(f"it has {size:,} bytes and only {free:,} are free")


class End:
    """One end of the way: the files in `folder`, read or written a piece at a time, and their hashes."""

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self.folder = folder
        self.writes = writes
        self.hashes: list[str] = []
        self._stream: FileIO | None = None
        self._digest = hashlib.sha256()

    def move(self, file: File, piece: memoryview, last: bool) -> None:
        """Write the next piece of `file`, or read it into `piece`. Raises OSError."""
        if self._stream is None:
            self._stream = (self.folder / file.name).open("xb" if self.writes else "rb", buffering=0)
            self._digest = hashlib.sha256()
        done = 0
        while done < len(piece):
            rest = piece[done:]
            count = self._stream.write(rest) if self.writes else self._stream.readinto(rest)
            if not count:
                raise OSError(f"{file.name} is shorter than it was")
            done += count
        self._digest.update(piece)
        if last:
            if self.writes:
                os.fsync(self._stream.fileno())
            self.close()
            self.hashes.append(self._digest.hexdigest())

    def close(self) -> None:
        """Close the file that is at work."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Transfer:
    """The checkpoint of `step` on its way from the place number `source` to those in `targets`."""

    def __init__(
        self, folder: CheckpointFolder, places: Places, step: int, source: int, targets: Sequence[int]
    ) -> None:
        self.folder = folder
        self.places = places
        self.step = step
        self.sends = places.leads and places.own == source
        self.receives = places.leads and places.own in targets
        self.sender = places.ranks[source][0]
        self.ranks = [self.sender, *(places.ranks[number][0] for number in targets)]
        self.end = End(folder.partial(step) if self.receives else folder.of(step), writes=self.receives)
        self.fault: OSError | None = None

    def run(self) -> int:
        """Bring the files over and return how many bytes they have. Called by all ranks together.

        Raises CheckpointError on all of them; what has come in by then is removed.
        """
        files = self._sender_tells(
            self._together(lambda: manifest(self.folder.of(self.step)) if self.sends else [])
        )
        group = None
        if self.sends or self.receives:
            group = dist.new_group(self.ranks, backend="gloo", use_local_synchronization=True)
        try:
            self._together(lambda: self._prepare(files))
            self._copy(files, group)
            hashes = self._sender_tells(self.end.hashes)
            self._together(lambda: self._adopt(files, hashes))
        finally:
            self.end.close()
            if self.receives:
                shutil.rmtree(self.folder.partial(self.step), ignore_errors=True)
            if group is not None:
                dist.destroy_process_group(group)
        return sum(file.size for file in files)

    def _prepare(self, files: Sequence[File]) -> None:
        if self.receives:
            self.folder.remove_partial()
            self.folder.partial(self.step).mkdir(parents=True)
            check(files, shutil.disk_usage(self.folder.path).free)

    def _copy(self, files: Sequence[File], group: Any) -> None:
        buffer = bytearray(PIECE)
        for number, (file, size, last) in enumerate(_pieces(files), start=1):
            piece = memoryview(buffer)[:size]
            if self.sends:
                self._move(file, piece, last)
            if size and group is not None:
                dist.broadcast(torch.frombuffer(piece, dtype=torch.uint8), src=self.sender, group=group)
            if self.receives:
                self._move(file, piece, last)
            if number % PIECES == 0:
                self._together(self._confess)
        self._together(self._confess)

    def _move(self, file: File, piece: memoryview, last: bool) -> None:
        # After a fault the messages go on until all ranks hear of it, and mean nothing.
        if self.fault is None:
            try:
                self.end.move(file, piece, last)
            except OSError as error:
                self.fault = error

    def _confess(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _adopt(self, files: Sequence[File], hashes: Sequence[str]) -> None:
        if self.receives:
            for file, theirs, ours in zip(files, hashes, self.end.hashes, strict=True):
                if theirs != ours:
                    raise CheckpointError(f"{file.name} was spoiled on its way")
            self.folder.adopt(self.step)

    def _sender_tells(self, value: T) -> T:
        told = [value]
        dist.broadcast_object_list(told, src=self.sender)
        return told[0]

    def _together(self, action: Callable[[], T]) -> T:
        result, failures = self.places.attempt(action)
        if failures:
            raise CheckpointError(self.places.say_where(*next(iter(failures.items()))))
        return cast(T, result)


def _pieces(files: Sequence[File]) -> Iterator[tuple[File, int, bool]]:
    """File, size of its next piece, and whether that is its last; an empty file has one of no bytes."""
    for file in files:
        for offset in range(0, max(file.size, 1), PIECE):
            size = min(PIECE, file.size - offset)
            yield file, size, offset + size == file.size
