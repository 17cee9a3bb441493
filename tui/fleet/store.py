"""The store: everything known about hosts and runs, in one place, for everybody who draws or prints.

Sessions write into it through `Store.apply` and `Store.set_link`; screens only read. Nothing here does I/O.
`Store.revision` grows with every change of anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from agent import wire

from .run_view import RunView, whole_runs
from .views import (
    HISTORY_SECONDS,
    PROGRESS_RECORDS,
    STALE_SECONDS,
    HostView,
    Link,
    NodeView,
    RankView,
    Series,
)

__all__ = [
    "HISTORY_SECONDS",
    "PROGRESS_RECORDS",
    "STALE_SECONDS",
    "HostView",
    "Link",
    "NodeView",
    "RankView",
    "RunView",
    "Series",
    "Store",
]


class Store:
    """All hosts, in the order in which the user put them."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostView] = {}
        self.revision = 0
        self._whole: dict[str, list[RunView]] | None = None
        """The runs put together from their hosts' parts, by name; None when that is to be done anew."""

    def add_host(self, name: str, address: str) -> HostView:
        """Add a host and return its view; an existing one of that name is kept and gets the new address."""
        view = self.hosts.get(name)
        if view is None:
            view = self.hosts[name] = HostView(name, address)
            self._whole = None
        view.address = address
        self._touch(view)
        return view

    def remove_host(self, name: str) -> None:
        """Forget a host and all that is known of it."""
        if self.hosts.pop(name, None) is not None:
            self.revision += 1
            self._whole = None

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
        if Link.LIVE in (view.link, link):  # of two names of one machine the one that answers speaks for it
            self._whole = None
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
            self._whole = None
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

    def runs(self) -> list[RunView]:
        """All runs, newest first; each once, whatever the number of its hosts."""
        found = [run for same in self._by_name().values() for run in same]
        return sorted(found, key=lambda run: run.info.started, reverse=True)

    def find_run(self, run_id: str) -> RunView | None:
        """The run of that name, or None. Of several the newest: names given by hand may be given twice."""
        return max(self._by_name().get(run_id, ()), key=lambda run: run.info.started, default=None)

    def host_with_id(self, host_id: str) -> HostView | None:
        """The host that is this machine, or None; of two names for it the one that answers."""
        same = [view for view in self.hosts.values() if host_id and view.host_id == host_id]
        return min(same, key=lambda view: view.link is not Link.LIVE, default=None)

    def remembered_as(self, name: str, host_id: str) -> None:
        """Say which machine a host was when it was last seen; what it says itself counts more."""
        view = self.hosts.get(name)
        if view is not None and view.hello is None:
            view.host_id = host_id
            self._whole = None
            self._touch(view)

    def _by_name(self) -> dict[str, list[RunView]]:
        if self._whole is None:
            self._whole = whole_runs(list(self.hosts.values()))
        return self._whole

    def _touch(self, view: HostView) -> None:
        view.revision += 1
        self.revision += 1

    def _apply_hello(self, view: HostView, hello: wire.Hello) -> None:
        if view.host_id and view.host_id != hello.host_id:
            view.former_ids.append(view.host_id)
            # The same address answers as another machine: nothing we knew of the old one holds for it.
            view.runs.clear()
            view.sample = None
            view.cpu = Series()
            view.gpu_utilization.clear()
        view.hello = hello
        view.host_id = hello.host_id
        self._whole = None
        view.ready = False
        view.told.clear()
        view.clock_offset = hello.time - time.time()

    def _apply_ready(self, view: HostView) -> None:
        view.ready = True
        self._whole = None
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
        self._whole = None
        run = view.runs.get(info.run)
        if run is None:
            view.runs[info.run] = NodeView(view.name, info, time.monotonic())
            return
        if run.info.attempt != info.attempt:
            run.ranks.clear()
            run.progress.clear()
            run.progress_rank = None
            run.training = None
            run.pace = Series()
        run.info = info
        run.received = time.monotonic()
        run.revision += 1

    def _apply_ranks(self, view: HostView, message: wire.Ranks) -> None:
        run = view.runs.get(message.run)
        if run is None or run.info.attempt != message.attempt:
            return
        now = time.monotonic()
        run.training = message.training
        for sample in message.ranks:
            rank = run.ranks.get(sample.rank)
            if rank is None:
                run.ranks[sample.rank] = RankView(view.name, sample, now)
            else:
                rank.sample, rank.received = sample, now
        seconds = [sample.step_seconds for sample in message.ranks if sample.step_seconds]
        run.pace.append(message.time, 1 / max(seconds) if seconds else None)
        run.revision += 1

    def put_history(self, name: str, history: wire.Progress) -> None:
        """Put a rank's records from before this viewer came before those that it sent since.

        Another attempt's are ignored, and those of a rank while a lower one reports.
        """
        view = self.hosts.get(name)
        run = view.runs.get(history.run) if view is not None else None
        if view is None or run is None or run.info.attempt != history.attempt or not history.records:
            return
        if run.progress_rank is not None and run.progress_rank < history.rank:
            return
        newer = [] if run.progress_rank != history.rank else _after(history.records[-1], run.progress)
        run.progress_rank = history.rank
        run.progress.clear()
        run.progress.extend([*history.records, *newer])
        run.revision += 1
        self._touch(view)

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


def _after(last: wire.Record, records: Iterable[wire.Record]) -> list[wire.Record]:
    """The records that were written after `last`, by the clock of who wrote them."""
    end = _time(last)
    return [record for record in records if _time(record) > end]


def _time(record: wire.Record) -> float:
    time = record.get("time")
    return float(time) if isinstance(time, int | float) else 0.0
