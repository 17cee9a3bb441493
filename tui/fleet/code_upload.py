"""One transfer of a project to a host, over a command of its own there; see `agent/receive.py`.

No more is on its way than passes in a moment: what a person types goes over the same connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .agent_command import start_command
from .errors import EncampError, HostError, RequestRefused, Unreachable
from .patience import within
from .project import Entry, Project
from .sanitize import printable
from .session import Session
from .ssh.client import ExecChannel

T = TypeVar("T")

BLOCK = 1024 * 1024
"""Bytes that are read from the disk in one go."""

FIRST_WINDOW, LEAST_WINDOW, MOST_WINDOW = 512 * 1024, 96 * 1024, 8 * 1024 * 1024
"""Bytes that are sent before the first of them has been acknowledged."""

LEAST_FRAME, MOST_FRAME = 24 * 1024, 256 * 1024

QUICK_SECONDS, SLOW_SECONDS = 0.1, 0.3
"""An acknowledgement so soon after the soonest one lets more be on its way; one so late, less."""

SLOW_LINK = 8_000_000
"""Bytes a second below which compressing is quicker than sending, also on a machine that has other work."""

WORTH = 0.9
"""Compressed data is sent when it has at most this part of the size."""

UNWORTHY_FRAMES = (4, 64)
"""So many frames are sent as they are after one that was not worth it: twice as many each time."""

SILENCE_SECONDS = 60.0
"""How long the host may say nothing while it owes an answer."""

NEED_BYTES = 8 * 1024 * 1024
LINE_BYTES = 16 * 1024

LAST_WORD_SECONDS = 2.0
"""How long a host that takes nothing more may need to say why."""

STILL = "Launch again when nobody writes to it, or list it in .encampignore."

HINTS = {
    "changed": STILL,
    "no-space": "Make room there, such as by removing old runs from ~/.encamp/runs.",
    "io": "Look at the disk there.",
}

Shown = Callable[[int, int], None]
"""Is told the bytes of the needed files that the host has, and how many there are."""


class FileChanged(EncampError):
    """A file is not any more what it was when the project was looked at."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{printable(path)} was changed while the project was sent.",
            STILL,
        )


class Upload:
    """The transfer. Use `send`, once."""

    def __init__(self, session: Session, project: Project, shown: Shown) -> None:
        self._session = session
        self._project = project
        self._shown = shown
        self.done = 0
        """Bytes that the host has."""
        self.total = 0
        self._flow = Flow()
        self._plain_frames, self._pause = 0, UNWORTHY_FRAMES[0]

    async def send(self) -> None:
        """Send what the host needs and wait until the tree is there.

        Raises RequestRefused (`no-space`, `changed`, `io`, ...), FileChanged, HostError, Unreachable.
        """
        channel, said = await start_command(self._session, "receive-code")
        answers = _Answers(channel, said, self._session.name)
        try:
            manifest = zlib.compress(self._project.manifest)
            tree = self._project.tree
            head = {"sha256": tree.sha256, "name": tree.name, "size": len(manifest)}
            beginning = channel.write(json.dumps(head).encode() + b"\n" + manifest)
            needed = _needed(await _while(beginning, answers.need()), self._project.entries)
            self.total = sum(entry.size for entry, _ in needed)
            self._advance(sum(offset for _, offset in needed))
            await _while(self._contents(channel, needed), self._acknowledged(answers))
            self._advance(self.total - self.done)
        finally:
            await channel.close()

    async def _contents(self, channel: ExecChannel, needed: Sequence[tuple[Entry, int]]) -> None:
        blocks = _blocks(self._project.folder, needed)
        coming = asyncio.ensure_future(asyncio.to_thread(next, blocks, None))
        try:
            while block := await coming:
                coming = asyncio.ensure_future(asyncio.to_thread(next, blocks, None))
                left = memoryview(block)
                while left:
                    piece = left[: self._flow.frame]
                    left = left[len(piece) :]
                    packed, data = await self._pack(piece)
                    await self._flow.room()
                    self._flow.leaves(len(data), len(piece))
                    await channel.write(struct.pack(">?I", packed, len(data)) + data)
        finally:
            await asyncio.wait([coming])
            blocks.close()

    async def _pack(self, piece: memoryview) -> tuple[bool, bytes]:
        """What to send for a piece, and whether that is compressed."""
        self._plain_frames -= 1
        if self._flow.rate < SLOW_LINK and self._plain_frames < 0:
            packed = await asyncio.to_thread(zlib.compress, piece, 1)
            if len(packed) <= WORTH * len(piece):
                self._pause = UNWORTHY_FRAMES[0]
                return True, packed
            self._plain_frames = self._pause
            self._pause = min(2 * self._pause, UNWORTHY_FRAMES[1])
        return False, bytes(piece)

    async def _acknowledged(self, answers: _Answers) -> None:
        """Take in what the host says until it says that the tree is there."""
        while await answers.goes_on():
            self._advance(self._flow.arrived())

    def _advance(self, size: int) -> None:
        self.done += size
        self._shown(self.done, self.total)


class Flow:
    """How much is on its way, and how much may be: as long as it passes in a moment, more.

    What waits in between is measured by how much later than the soonest one an acknowledgement comes.
    """

    def __init__(self) -> None:
        self.window = FIRST_WINDOW
        self.rate = float("inf")
        """Bytes a second."""
        self._frames: deque[tuple[float, int, int]] = deque()
        self._flying = 0
        self._soonest = float("inf")
        self._room = asyncio.Event()
        self._busy_since = 0.0
        self._passed = 0

    @property
    def frame(self) -> int:
        """Bytes that the next frame should have."""
        return max(LEAST_FRAME, min(MOST_FRAME, self.window // 4))

    async def room(self) -> None:
        """Wait until another frame may leave."""
        while self._flying >= self.window:
            self._room.clear()
            await self._room.wait()

    def leaves(self, size: int, content: int) -> None:
        """A frame of `size` bytes leaves, which stand for `content` bytes."""
        now = time.monotonic()
        if not self._frames:
            self._busy_since, self._passed = now, 0
        self._frames.append((now, size, content))
        self._flying += size

    def arrived(self) -> int:
        """The oldest frame has been acknowledged; returns its content's bytes. Raises HostError for none."""
        if not self._frames:
            raise HostError("The host acknowledges what it was not sent.", "Connect again.")
        left, size, content = self._frames.popleft()
        now = time.monotonic()
        seconds = now - left
        self._flying -= size
        self._soonest = min(self._soonest, seconds)
        if seconds - self._soonest < QUICK_SECONDS:
            self.window = min(MOST_WINDOW, self.window + size)
        elif seconds - self._soonest > SLOW_SECONDS:
            self.window = max(LEAST_WINDOW, self.window - size // 2)
        self._passed += size
        if now - self._busy_since > QUICK_SECONDS:
            self.rate = self._passed / (now - self._busy_since)
        self._room.set()
        return content


class _Answers:
    """What the host says."""

    def __init__(self, channel: ExecChannel, said: bytes, name: str) -> None:
        self._channel = channel
        self._said = said
        self._name = name

    async def need(self) -> list[list[int]]:
        """What it needs. Raises RequestRefused, HostError."""
        while (letter := await self._letter()) == b" ":
            pass
        if letter != b"n":
            raise await self._refusal(letter)
        words = (await self._line()).split()
        if len(words) != 2 or words[0] != b"eed" or not words[1].isdigit() or int(words[1]) > NEED_BYTES:
            raise self._nonsense()
        while len(self._said) < int(words[1]):
            await self._more()
        data, self._said = self._said[: int(words[1])], self._said[int(words[1]) :]
        try:
            need = json.loads(data)
        except (ValueError, RecursionError):
            raise self._nonsense() from None
        pairs = isinstance(need, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in need)
        if not pairs or not all(type(number) is int and number >= 0 for pair in need for number in pair):
            raise self._nonsense()
        return [[number, offset] for number, offset in need]

    async def goes_on(self) -> bool:
        """True for an acknowledged frame, False at the good end. Raises RequestRefused, HostError."""
        while (letter := await self._letter()) == b" ":
            pass
        if letter in (b".", b"+"):
            return letter == b"."
        raise await self._refusal(letter)

    async def _refusal(self, letter: bytes) -> EncampError:
        """The error behind `letter`."""
        if letter == b"-":
            try:
                code, message = json.loads(await self._line())
                return RequestRefused(str(code), printable(str(message)[:500]), HINTS.get(code, ""))
            except (ValueError, TypeError, RecursionError):
                pass
        return self._nonsense()

    async def _letter(self) -> bytes:
        if not self._said:
            await self._more()
        letter, self._said = self._said[:1], self._said[1:]
        return letter

    async def _line(self) -> bytes:
        while b"\n" not in self._said:
            if len(self._said) > LINE_BYTES:
                raise self._nonsense()
            await self._more()
        line, _, self._said = self._said.partition(b"\n")
        return line

    async def _more(self) -> None:
        try:
            data = await within(SILENCE_SECONDS, self._channel.read(LINE_BYTES))
        except TimeoutError:
            raise Unreachable(f"{self._name} has said nothing for {SILENCE_SECONDS:.0f} s.") from None
        if not data:
            raise Unreachable(f"The connection to {self._name} was lost.")
        self._said += data

    def _nonsense(self) -> HostError:
        return HostError(f"{self._name} answers in a way that makes no sense.", "Connect again.")


async def _while(sending: Coroutine[Any, Any, None], hearing: Coroutine[Any, Any, T]) -> T:
    """Send and hear at once until all is heard. Raises what hearing raises: it knows why sending fails."""
    tasks = asyncio.ensure_future(sending), asyncio.ensure_future(hearing)
    sender, hearer = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if not hearer.done() and isinstance(sender.exception(), Unreachable):
            await asyncio.wait([hearer], timeout=LAST_WORD_SECONDS)
        if not hearer.done():
            sender.result()
        return await hearer
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _needed(need: Sequence[Sequence[int]], entries: Sequence[Entry]) -> list[tuple[Entry, int]]:
    """The files that the host needs, and how much of each it has. Raises HostError."""
    needed = [(entries[number], offset) for number, offset in need if number < len(entries)]
    if len(needed) < len(need) or any(
        entry.kind == "link" or offset > entry.size for entry, offset in needed
    ):
        raise HostError("The host asks for what it was not offered.", "Connect again.")
    return needed


def _blocks(folder: Path, needed: Sequence[tuple[Entry, int]]) -> Generator[bytes, None, None]:
    """What is needed of all files, one after the other. Raises FileChanged."""
    parts: list[bytes] = []
    size = 0
    for entry, offset in needed:
        for data in _pieces(folder, entry, offset):
            parts.append(data)
            size += len(data)
            if size >= BLOCK:
                yield b"".join(parts)
                parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _pieces(folder: Path, entry: Entry, offset: int) -> Iterator[bytes]:
    """A file from `offset` on: exactly as much as was promised. Its hash is what the host looks at."""
    try:
        descriptor = os.open(folder / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FileChanged(entry.path) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            raise FileChanged(entry.path)
        while offset < entry.size:
            data = os.pread(descriptor, min(BLOCK, entry.size - offset), offset)
            if not data:
                raise FileChanged(entry.path)
            offset += len(data)
            yield data
    finally:
        os.close(descriptor)
