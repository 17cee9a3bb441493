"""The store: everything known about hosts and runs, in one place, for everybody who draws or prints.

Sessions write into it through `HostView` and `Store.apply`; screens only read. Nothing here does I/O.
Each `HostView` and `RunView` carries a `revision` that grows with every change, so that a screen can ask
"has anything I show changed?" in constant time. `Store.revision` grows with all of them.

Histories are bounded: what is drawn is kept, the rest is on the host's disk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
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

    sample: wire.RankSample
    received: float
    """`time.monotonic()` of this machine."""
    progress: wire.Record = field(default_factory=dict)
    """The newest progress record of this rank."""


@dataclass(slots=True)
class RunView:
    """A run on one host."""

    host: str
    info: wire.Run
    received: float
    ranks: dict[int, RankView] = field(default_factory=dict)
    progress: deque[wire.Record] = field(default_factory=lambda: deque(maxlen=PROGRESS_RECORDS))
    """Progress records of rank 0 (the lowest rank that reports), of the current attempt, oldest first."""
    progress_rank: int | None = None
    pace: Series = field(default_factory=Series)
    """Steps per second of the slowest rank, of the current attempt."""
    events: deque[wire.Event] = field(default_factory=lambda: deque(maxlen=256))
    revision: int = 0

    @property
    def id(self) -> str:
        """The run's name, unique in the fleet."""
        return self.info.run

    @property
    def live(self) -> bool:
        """Whether its processes are, as far as is known, still there."""
        return self.info.state in wire.LIVE_STATES

    @property
    def step(self) -> int | None:
        """The step that all ranks have reached: the lowest of the ranks that count steps."""
        steps = [rank.sample.step for rank in self.ranks.values() if rank.sample.step is not None]
        return min(steps) if steps else None


@dataclass(slots=True)
class HostView:
    """One host: its connection, its newest telemetry and its runs."""

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
    clock_offset: float = 0.0
    """Host's wall clock minus ours, in seconds, as of the last hello (half a round trip uncertain)."""
    sample: wire.Sample | None = None
    received: float = 0.0
    """`time.monotonic()` of this machine when `sample` arrived."""
    cpu: Series = field(default_factory=Series)
    gpu_utilization: dict[int, Series] = field(default_factory=dict)
    runs: dict[str, RunView] = field(default_factory=dict)
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

    def run_state(self, run: RunView) -> str:
        """The run's state as it may be shown: a live run on a host that cannot be asked is `unreachable`."""
        if run.live and self.link not in (Link.LIVE, Link.RECONNECTING, Link.CONNECTING, Link.INSTALLING):
            return "unreachable"
        return run.info.state


class Store:
    """All hosts, in the order in which the user put them."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostView] = {}
        self.revision = 0

    def add_host(self, name: str, address: str) -> HostView:
        """Add a host and return its view; an existing one of that name is kept and gets the new address."""
        view = self.hosts.get(name)
        if view is None:
            view = self.hosts[name] = HostView(name, address)
        view.address = address
        self._touch(view)
        return view

    def remove_host(self, name: str) -> None:
        """Forget a host and all that is known of it."""
        if self.hosts.pop(name, None) is not None:
            self.revision += 1

    def set_link(
        self,
        name: str,
        link: Link,
        message: str = "",
        hint: str = "",
        retry_at: float | None = None,
        since: float | None = None,
    ) -> None:
        """Record where the connection to `name` stands.

        `since` (wall clock) is when that began, for a state that is recognised only afterwards: a host is
        unreachable since the last sign of life. Left out, it is now if `link` changes, else it stays.
        """
        view = self.hosts.get(name)
        if view is None:
            return
        if since is not None:
            view.since = since
        elif view.link is not link:
            view.since = time.time()
        view.link, view.message, view.hint, view.retry_at = link, message, hint, retry_at
        self._touch(view)

    def count_bad_message(self, name: str) -> None:
        """Count a line of `name` that could not be decoded; it is shown on the host's row."""
        view = self.hosts.get(name)
        if view is not None:
            view.bad_messages += 1
            self._touch(view)

    def apply(self, name: str, message: wire.Message) -> None:
        """Take in one message of the agent on host `name`. Messages that hold no state are ignored."""
        view = self.hosts.get(name)
        if view is None:
            return
        if isinstance(message, wire.Sample):
            self._apply_sample(view, message)
        elif isinstance(message, wire.Ranks):
            self._apply_ranks(view, message)
        elif isinstance(message, wire.Progress):
            self._apply_progress(view, message)
        elif isinstance(message, wire.Run):
            self._apply_run(view, message)
        elif isinstance(message, wire.Removed):
            view.runs.pop(message.run, None)
        elif isinstance(message, wire.Event):
            run = view.runs.get(message.run)
            if run is not None:
                run.events.append(message)
                run.revision += 1
        elif isinstance(message, wire.Hello):
            self._apply_hello(view, message)
        elif isinstance(message, wire.Ready):
            self._apply_ready(view)
        else:
            return
        self._touch(view)

    def runs(self) -> Iterator[tuple[HostView, RunView]]:
        """All runs, newest first."""
        pairs = [(host, run) for host in self.hosts.values() for run in host.runs.values()]
        yield from sorted(pairs, key=lambda pair: pair[1].info.started, reverse=True)

    def find_run(self, run_id: str) -> tuple[HostView, RunView] | None:
        """The run of that name and its host, or None."""
        for host in self.hosts.values():
            run = host.runs.get(run_id)
            if run is not None:
                return host, run
        return None

    def _touch(self, view: HostView) -> None:
        view.revision += 1
        self.revision += 1

    def _apply_hello(self, view: HostView, hello: wire.Hello) -> None:
        if view.hello is not None and view.hello.host_id != hello.host_id:
            # The same address answers as another machine: nothing we knew of the old one holds for it.
            view.runs.clear()
            view.sample = None
            view.cpu = Series()
            view.gpu_utilization.clear()
        view.hello = hello
        view.ready = False
        view.told.clear()
        view.clock_offset = hello.time - time.time()

    def _apply_ready(self, view: HostView) -> None:
        view.ready = True
        if len(view.told) < wire.KNOWN_RUNS:  # it has named all it has: what it has not is removed there
            for run in view.runs.keys() - view.told:
                del view.runs[run]

    def _apply_sample(self, view: HostView, sample: wire.Sample) -> None:
        view.sample = sample
        view.received = time.monotonic()
        view.cpu.append(sample.time, sample.cpu.percent)
        for gpu in sample.gpu.gpus:
            series = view.gpu_utilization.get(gpu.index)
            if series is None:
                series = view.gpu_utilization[gpu.index] = Series()
            series.append(sample.gpu.time, gpu.utilization_percent)

    def _apply_run(self, view: HostView, info: wire.Run) -> None:
        view.told.add(info.run)
        run = view.runs.get(info.run)
        if run is None:
            view.runs[info.run] = RunView(view.name, info, time.monotonic())
            return
        if run.info.attempt != info.attempt:
            run.ranks.clear()
            run.progress.clear()
            run.progress_rank = None
            run.pace = Series()
        run.info = info
        run.received = time.monotonic()
        run.revision += 1

    def _apply_ranks(self, view: HostView, message: wire.Ranks) -> None:
        run = view.runs.get(message.run)
        if run is None or run.info.attempt != message.attempt:
            return
        now = time.monotonic()
        for sample in message.ranks:
            rank = run.ranks.get(sample.rank)
            if rank is None:
                run.ranks[sample.rank] = RankView(sample, now)
            else:
                rank.sample, rank.received = sample, now
        seconds = [sample.step_seconds for sample in message.ranks if sample.step_seconds]
        run.pace.append(message.time, 1 / max(seconds) if seconds else None)
        run.revision += 1

    def _apply_progress(self, view: HostView, message: wire.Progress) -> None:
        run = view.runs.get(message.run)
        if run is None or run.info.attempt != message.attempt or not message.records:
            return
        rank = run.ranks.get(message.rank)
        if rank is not None:
            rank.progress = message.records[-1]
        if run.progress_rank is None or message.rank < run.progress_rank:
            run.progress.clear()
            run.progress_rank = message.rank
        if message.rank == run.progress_rank:
            run.progress.extend(message.records)
        run.revision += 1
