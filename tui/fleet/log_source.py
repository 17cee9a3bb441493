"""Where a log's bytes come from: the four things that its reader may ask, and the session that answers.

A reader needs ranges, new bytes as they are written, a search over what it does not hold, and what is known
about the stream without asking. `SessionSource` asks the agent; tests answer from memory or from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent import wire

from .errors import EncampError
from .store import Link, Store

CHUNK_BYTES = wire.MAX_CHUNK
"""The most that one read returns."""


class LogSink(Protocol):
    """Takes in a followed stream; calls come in the order of the bytes."""

    def data(self, offset: int, data: bytes) -> None:
        """These bytes were written at `offset`."""

    def gap(self, start: int, end: int) -> None:
        """Bytes [start, end) were written but not sent: read them when they are needed."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """`data` begins at `offset`; the file had `size` bytes. `ended`: the attempt is over, it is final."""

    offset: int
    data: bytes
    size: int
    ended: bool


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A match at `offset`, or none up to `scanned_to`; `more` says that there is more to search there."""

    offset: int | None
    scanned_to: int
    more: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known of a stream without asking its host."""

    trouble: str = ""
    """Why nothing new can come at the moment, in a few words; empty while all is well."""
    since: float | None = None
    """Wall clock since when."""
    ended: bool = False
    """The attempt is over."""


class LogSource(Protocol):
    """One log. Its methods raise EncampError."""

    label: str
    """What people call it: `rank 3`, `launcher`."""

    async def read(self, offset: int, length: int) -> LogSlice:
        """Up to `length` (at most `CHUNK_BYTES`) bytes from `offset`; a negative one counts from the end."""

    async def follow(self, offset: int, sink: LogSink) -> None:
        """Give `sink` everything from `offset` on, now and as it is written, until `unfollow`."""

    async def unfollow(self, sink: LogSink) -> None:
        """No more calls for this sink after this returns."""

    async def search(self, text: str, offset: int, *, backward: bool, ignore_case: bool) -> SearchStep:
        """Look for the first match from `offset` on, or for the last one that begins before it."""

    def condition(self) -> Condition:
        """How the stream is doing. Takes no time."""


class LogSession(Protocol):
    """What is needed of a `session.Session`."""

    @property
    def store(self) -> Store:
        """The store the session writes into."""

    @property
    def name(self) -> str:
        """The host's name in the store."""

    async def read_log(
        self, run: str, attempt: int, stream: str, offset: int, length: int
    ) -> tuple[int, bytes, int, bool]:
        """A range of a log: its offset, its bytes, the file's size, whether the attempt is over."""

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: LogSink) -> Any:
        """Give `sink` the stream from `offset` on, across reconnections, without gap or duplicate."""

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: LogSink) -> Any:
        """Stop that."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the agent."""


def stream_label(stream: str) -> str:
    """How a stream is called on the screen: `rank3` is `rank 3`."""
    return f"rank {stream[4:]}" if stream.startswith("rank") else stream


class SessionSource:
    """A stream of one attempt of a run on a session's host."""

    def __init__(self, session: LogSession, run: str, attempt: int, stream: str) -> None:
        self.label = stream_label(stream)
        self._session = session
        self._key = (run, attempt, stream)

    async def read(self, offset: int, length: int) -> LogSlice:
        """See `LogSource`."""
        part = LogSlice(*await self._session.read_log(*self._key, offset, length))
        if offset >= 0:
            wrong = part.offset != offset or len(part.data) > length
        else:
            wrong = part.offset < 0 or part.offset + len(part.data) > part.size
        if wrong:
            raise EncampError("the host sends another part of the log than it was asked for")
        return part

    async def follow(self, offset: int, sink: LogSink) -> None:
        """See `LogSource`."""
        await self._session.follow_log(*self._key, offset, sink)

    async def unfollow(self, sink: LogSink) -> None:
        """See `LogSource`."""
        await self._session.unfollow_log(*self._key, sink)

    async def search(self, text: str, offset: int, *, backward: bool, ignore_case: bool) -> SearchStep:
        """See `LogSource`."""
        run, attempt, stream = self._key
        result = await self._session.request(
            "log_search",
            {
                "run": run,
                "attempt": attempt,
                "stream": stream,
                "text": text,
                "offset": offset,
                "backward": backward,
                "ignore_case": ignore_case,
            },
        )
        found, scanned_to, more = result.get("offset"), result.get("scanned_to"), result.get("more") is True
        if type(scanned_to) is not int or not (found is None or type(found) is int):
            raise EncampError("the host's answer to the search makes no sense")
        # A host that answers without getting on would keep us asking for ever.
        place = found if found is not None else scanned_to
        gets_on = 0 <= place < offset if backward else place >= offset + (found is None)
        if not gets_on and (found is not None or more):
            raise EncampError("the host's answer to the search makes no sense")
        return SearchStep(found, scanned_to, more)

    def condition(self) -> Condition:
        """See `LogSource`."""
        run_id, attempt, _ = self._key
        host = self._session.store.hosts.get(self._session.name)
        if host is None:
            return Condition("this host was removed", None, True)
        run = host.runs.get(run_id)
        ended = run is not None and (run.info.attempt > attempt or run.info.state in wire.END_STATES)
        if host.link is Link.LIVE:
            return Condition(ended=ended)
        words = "not connected" if host.link is Link.IDLE else host.link.value
        return Condition(words, host.since, ended)
