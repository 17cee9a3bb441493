"""The messages: one dataclass of each kind, named in `KINDS` by its lower-case name."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Tuple, Type, Union

from .limits import Scalar
from .runs import Ranks, Removed, Run
from .telemetry import Sample


@dataclasses.dataclass(frozen=True)
class Request:
    """Asks for one thing; answered by one `Reply` or `Failure` with the same `id`."""

    id: int
    method: str
    params: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Hello:
    """First message on every connection: who answers."""

    protocol_major: int
    protocol_minor: int
    version: str
    build: str
    """SHA-256 of the agent.pyz that is running, in hex."""
    host_id: str
    """Random identity of `ENCAMP_HOME` on this host; survives reboots, not a wiped disk."""
    boot_id: str
    hostname: str
    user: str
    home: str
    """Absolute path of `ENCAMP_HOME` on the host."""
    python: str
    pid: int
    time: float
    """Wall clock of the host, seconds since the epoch."""
    started: float


@dataclasses.dataclass(frozen=True)
class Ready:
    """Every run known at the time of connecting has been sent; from now on there are only changes."""


@dataclasses.dataclass(frozen=True)
class Log:
    """`data` is base64 of the bytes of the stream's file from `offset` on: see `payload`, `log_message`."""

    run: str
    attempt: int
    stream: str
    offset: int
    data: str


@dataclasses.dataclass(frozen=True)
class Gap:
    """Bytes [start, end) of a followed stream were not sent, as the viewer was slow: fetch when needed."""

    run: str
    attempt: int
    stream: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """New lines of a rank's progress file, oldest first."""

    run: str
    attempt: int
    rank: int
    records: Tuple[Dict[str, Scalar], ...]


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that was done or happened: `actor` is a person's or a part's name."""

    run: str
    attempt: int
    time: float
    name: str
    actor: str
    text: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to the request `id`."""

    id: int
    result: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Failure:
    """The refusal of the request `id`: `code` for programs, `message` and `hint` for people."""

    id: int
    code: str
    message: str
    hint: str = ""


Message = Union[
    Hello, Ready, Sample, Ranks, Run, Removed, Log, Gap, Progress, Event, Reply, Failure, Request
]  # fmt: skip

_CLASSES: Tuple[Type[Any], ...] = (
    Hello, Ready, Sample, Ranks, Run, Removed, Log, Gap, Progress, Event, Reply, Failure, Request,
)  # fmt: skip

KINDS: Dict[str, Type[Any]] = {kind.__name__.lower(): kind for kind in _CLASSES}
