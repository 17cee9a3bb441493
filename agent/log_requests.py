"""The requests for logs: pieces of them, following them, looking for a text."""

from __future__ import annotations

import base64
import dataclasses
import os
from typing import Tuple

from . import logs, wire
from .actions import in_thread
from .attempt import Attempt
from .errors import RunError
from .services import Methods, Result, Services, attempt_of
from .viewer import Viewer

MAX_NEEDLE = 1024
"""Bytes of a text to search for."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """One log of one attempt."""

    run: str
    attempt: int
    stream: str


@dataclasses.dataclass(frozen=True)
class LogRead(Stream):
    """A negative offset counts from the end."""

    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class LogFollow(Stream):
    """A negative offset counts from the end."""

    offset: int


@dataclasses.dataclass(frozen=True)
class LogSearch(Stream):
    """See `logs.search`."""

    text: str
    offset: int
    backward: bool = False
    ignore_case: bool = False


async def log_read(services: Services, viewer: Viewer, params: LogRead) -> Result:
    """A piece of a log. `ended` is looked at before the file, so it holds for the `size` that is told."""
    del viewer
    path, attempt = _stream(services, params)
    ended = attempt.condition().over
    part = logs.read_range(path, params.offset, max(0, params.length))
    data = base64.b64encode(part.data).decode("ascii")
    return {"offset": part.offset, "data": data, "size": part.size, "ended": ended}


async def log_follow(services: Services, viewer: Viewer, params: LogFollow) -> Result:
    """Send a log from an offset on, and then what is added."""
    path, attempt = _stream(services, params)
    ended = attempt.condition().over
    size = logs.size_of(path)
    offset = max(0, size + params.offset) if params.offset < 0 else params.offset
    if not viewer.follow(logs.Follower(path, params.run, params.attempt, params.stream, offset)):
        raise RunError("busy", "this viewer follows too many logs already", "unfollow some")
    return {"size": size, "ended": ended}


async def log_unfollow(services: Services, viewer: Viewer, params: Stream) -> Result:
    """Stop sending a log."""
    del services
    viewer.unfollow((params.run, params.attempt, params.stream))
    return {}


async def log_search(services: Services, viewer: Viewer, params: LogSearch) -> Result:
    """Look for a text in a log."""
    del viewer
    path, _ = _stream(services, params)
    needle = params.text.encode("utf-8", "replace")
    if not 0 < len(needle) <= MAX_NEEDLE:
        raise wire.WireError(f"text has {len(needle)} bytes; 1 to {MAX_NEEDLE} are allowed")
    found = await in_thread(logs.search, path, needle, params.offset, params.backward, params.ignore_case)
    return dict(found._asdict())


def _stream(services: Services, params: Stream) -> Tuple[str, Attempt]:
    attempt = attempt_of(services, params.run, params.attempt)
    path = os.path.join(attempt.dir, f"{params.stream}.log")
    possible = {"launcher", *(f"rank{rank}" for rank in attempt.expected())}
    if params.stream not in possible and not (wire.STREAM.match(params.stream) and os.path.exists(path)):
        raise RunError(
            "no-stream", f"{params.run} has no log {params.stream[:40]!r} in attempt {params.attempt}"
        )
    return path, attempt


METHODS: Methods = {
    "log_read": (LogRead, log_read),
    "log_follow": (LogFollow, log_follow),
    "log_unfollow": (Stream, log_unfollow),
    "log_search": (LogSearch, log_search),
}
