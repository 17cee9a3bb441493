"""What is known of one host and of its part of each run: the newest values and bounded histories.

`HostView` and `NodeView` carry a `revision` that grows with every change, so that a screen can ask "has
anything I show changed?" in constant time. Only the store writes into them.

Histories are bounded: what is drawn is kept, the rest is on the host's disk.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from agent import wire

HISTORY_SECONDS = 600
"""How many samples (at 1 Hz) each telemetry series keeps."""

PROGRESS_RECORDS = 4096
"""How many progress records a run keeps for its graphs."""

STALE_SECONDS = 3.0
"""A value older than this is shown dimmed, with its age."""


class Link(Enum):
    """Where the connection to a host stands. The value is the word shown on the host's row."""

    IDLE = "idle"
    CONNECTING = "connecting"
    CONFIRM_KEY = "new host key"
    INSTALLING = "installing"
    LIVE = "live"
    RECONNECTING = "reconnecting"
    UNREACHABLE = "unreachable"
    KEY_CHANGED = "key changed"
    AUTH_FAILED = "auth failed"
    REFUSED = "refused"
    """The host answered but cannot be used: no Python, nowhere to write, incompatible agent."""


class Series:
    """A bounded history of numbers with their times; `None` marks a moment without a value."""

    __slots__ = ("times", "values")

    def __init__(self, size: int = HISTORY_SECONDS) -> None:
        self.times: deque[float] = deque(maxlen=size)
        self.values: deque[float | None] = deque(maxlen=size)

    def append(self, at: float, value: float | None) -> None:
        """Add one value. `at` is the host's wall clock in seconds."""
        self.times.append(at)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def last(self) -> float | None:
        """The newest value, or None when there is none."""
        return self.values[-1] if self.values else None


@dataclass(slots=True)
class RankView:
    """One rank: the newest sample and when it arrived."""

    host: str
    """The name of the host that it is on."""
    sample: wire.RankSample
    received: float
    """`time.monotonic()` of this machine."""
    progress: wire.Record = field(default_factory=dict)
    """The newest progress record of this rank."""


@dataclass(slots=True)
class NodeView:
    """One host's part of a run, or all of it. Ranks have their numbers in the whole run."""

    host: str
    info: wire.Run
    received: float
    ranks: dict[int, RankView] = field(default_factory=dict)
    progress: deque[wire.Record] = field(default_factory=lambda: deque(maxlen=PROGRESS_RECORDS))
    """Progress records of the lowest rank here that reports, of the current attempt, oldest first."""
    progress_rank: int | None = None
    training: wire.Training | None = None
    """How the ranks share the work in the current attempt, where the program says so."""
    pace: Series = field(default_factory=Series)
    """Steps per second of the slowest rank here, of the current attempt."""
    events: deque[wire.Event] = field(default_factory=lambda: deque(maxlen=256))
    revision: int = 0

    @property
    def id(self) -> str:
        """The run's name, unique in the fleet and the same on all of its hosts."""
        return self.info.run

    @property
    def live(self) -> bool:
        """Whether its processes here are, as far as is known, still there."""
        return self.info.state in wire.LIVE_STATES

    @property
    def step(self) -> int | None:
        """The step that all ranks here have reached: the lowest of the ranks that count steps."""
        steps = [rank.sample.step for rank in self.ranks.values() if rank.sample.step is not None]
        return min(steps) if steps else None


@dataclass(slots=True)
class HostView:
    """One host: its connection, its newest telemetry and its parts of runs."""

    name: str
    address: str
    link: Link = Link.IDLE
    since: float = field(default_factory=time.time)
    """Wall clock of the last change of `link`."""
    message: str = ""
    """What went wrong, one sentence; empty when nothing did."""
    hint: str = ""
    """What to do next, one sentence."""
    retry_at: float | None = None
    """`time.monotonic()` of the next attempt to connect, while one is planned."""
    hello: wire.Hello | None = None
    host_id: str = ""
    """Which machine it is, as its hello says or as it is remembered; empty while that is not known."""
    former_ids: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    """Machines that answered at the same address before."""
    clock_offset: float = 0.0
    """Host's wall clock minus ours, in seconds, as of the last hello (half a round trip uncertain)."""
    sample: wire.Sample | None = None
    received: float = 0.0
    """`time.monotonic()` of this machine when `sample` arrived."""
    cpu: Series = field(default_factory=Series)
    gpu_utilization: dict[int, Series] = field(default_factory=dict)
    runs: dict[str, NodeView] = field(default_factory=dict)
    ready: bool = False
    """Whether the agent has sent all its runs since the last connect."""
    told: set[str] = field(default_factory=set)
    """The runs that it has named since then."""
    bad_messages: int = 0
    revision: int = 0

    def age(self, now: float | None = None) -> float | None:
        """Seconds since the newest telemetry arrived, or None when there never was any."""
        if self.sample is None:
            return None
        return (time.monotonic() if now is None else now) - self.received

    def run_state(self, run: NodeView) -> str:
        """The state of its part of a run as it may be shown: `unreachable` if that cannot be asked."""
        if run.live and self.link not in (Link.LIVE, Link.RECONNECTING, Link.CONNECTING, Link.INSTALLING):
            return "unreachable"
        return run.info.state
