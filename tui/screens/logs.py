"""The logs of one attempt of a run, on the whole screen: rank by rank, the launcher's, or all merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from .. import formatting as fmt
from .. import run_facts
from ..fleet.log_merge import MergedSource
from ..fleet.log_source import SessionSource, stream_label
from ..fleet.store import HostView, RunView
from ..widgets.log_pane import LogPane
from ..widgets.stream_tabs import StreamTabs, Tab
from ..widgets.toned import Piece
from .base import BaseScreen

MERGED = "merged"
"""Key of the merged view among the streams."""

MOST_RANKS = 1024
"""How many ranks get a tab while none of them is known: a host may say any number."""


class LogsScreen(BaseScreen):
    """All that a run printed. `rank` may be a launcher, see `run_facts.LAUNCHER`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "right_square_bracket", "step(1)", "rank", id="logs.next", key_display="[ ]", tooltip="next rank"
        ),
        Binding("left_square_bracket", "step(-1)", show=False, id="logs.previous", tooltip="previous rank"),
        Binding("m", "merged", "merged", id="logs.merged", tooltip="all ranks as one log, or one rank again"),
        Binding("L", "stream('launcher')", show=False, id="logs.launcher", tooltip="what the launcher says"),
        Binding("less_than_sign", "attempt(-1)", show=False, id="logs.earlier", tooltip="an earlier attempt"),
        Binding("greater_than_sign", "attempt(1)", show=False, id="logs.later", tooltip="a later attempt"),
        *(
            Binding(str(rank), f"stream('rank{rank}')", show=False, id="logs.rank", tooltip="rank 0 to 9")
            for rank in range(10)
        ),
    ]

    def __init__(self, run_id: str, rank: int) -> None:
        super().__init__()
        self.run_id = run_id
        self.stream = run_facts.stream(rank)
        self._single = self.stream
        """The stream that was looked at before the merged view."""
        self._launcher = rank if rank <= run_facts.LAUNCHER else None
        self._attempt: int | None = None
        self._newest: int | None = None
        self._shown: object = None

    def body(self) -> ComposeResult:
        """The streams, and the log of one."""
        yield StreamTabs()
        yield LogPane()

    @property
    def pane(self) -> LogPane:
        """The log."""
        return self.query_one(LogPane)

    @property
    def rank(self) -> int:
        """The rank that is looked at, or `run_facts.LAUNCHER`."""
        return int(self._single[4:]) if self._single.startswith("rank") else run_facts.LAUNCHER

    def home(self) -> Widget | None:
        """The log."""
        return self.pane.view

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return (
            "log.search",
            "log.follow",
            "logs.next",
            "logs.merged",
            "log.wrap",
            "log.times",
            "log.copy",
            "screen.back",
        )

    def found(self) -> RunView | None:
        """The run, if any host knows it."""
        return self.store.find_run(self.run_id)

    def crumbs(self) -> Sequence[str]:
        """The fleet, the run, its logs."""
        return ("fleet", self.run_id, "logs")

    def headline(self) -> list[list[Piece]]:
        """Where the run is, which attempt this is, and how it stands."""
        run = self.found()
        if run is None or self._attempt is None:
            return []
        mark = fmt.run_mark(run.state)
        attempt: list[Piece] = [(f"attempt {self._attempt}", "")]
        if self._attempt != run.attempt:
            attempt.append((f" of {run.attempt}, > is later", "degraded"))
        return [[(" ".join(run.hosts), "quiet")], attempt, [(f"{mark.glyph} {mark.word}", mark.tone)]]

    # --- redrawing ------------------------------------------------------------------------------------

    def update(self, now: float) -> None:  # noqa: ARG002
        """Show the streams there are, and the one that is looked at."""
        run = self.found()
        if run is None:
            self.query_one(StreamTabs).show(
                [[(f" ? no host that answers knows the run {self.run_id}", "unknown")]]
            )
            return
        self._keep_up(run)
        self._settle_launcher(run)
        self.query_one(StreamTabs).put(self._tabs(run), self.stream)
        self._show(run)

    def _keep_up(self, run: RunView) -> None:
        """Go on to a new attempt with a reader who follows; leave one alone who reads."""
        if self._attempt is None or (self._attempt == self._newest and self.pane.following):
            self._attempt = run.attempt
        self._newest = run.attempt

    def _settle_launcher(self, run: RunView) -> None:
        """Which launcher was asked for is only known by its node rank until the run is."""
        if self._launcher is not None:
            part = run.part_of(self._launcher)
            if part is not None and part[0] is not run.host:
                self.stream = self._single = _launcher_key(part[0])
            self._launcher = None

    def _hosts(self, run: RunView) -> dict[int, HostView]:
        """Hosts of the attempt that is looked at by node rank, as far as is known."""
        hosts = {node.info.node_rank: host for host, node in reversed(run.parts)}
        if self._attempt != run.attempt:
            # An earlier attempt had the same hosts in the same order, and those that were left behind since.
            hosts |= {node.info.node_rank: host for host, node in run.older}
        return dict(sorted(hosts.items()))

    def _streams(self, run: RunView) -> dict[str, tuple[HostView, str]]:
        """Keys of the tabs to hosts and their streams."""
        hosts = self._hosts(run)
        first, *others = hosts.values()
        streams = {"launcher": (first, "launcher")}
        streams |= {_launcher_key(host): (host, "launcher") for host in others}
        per_node = max(1, run.info.nproc_per_node)
        current = sorted(run.ranks) if self._attempt == run.attempt else []
        for rank in current or range(min(MOST_RANKS, per_node * (max(hosts) + 1))):
            host = hosts.get(rank // per_node)
            if host is not None:
                streams[run_facts.stream(rank)] = (host, run_facts.stream(rank))
        return streams

    def _tabs(self, run: RunView) -> list[Tab]:
        ranks = run.ranks if self._attempt == run.attempt else {}
        several, stopped = len(run.hosts) > 1, run.state in ("stopped", "stopping")
        tabs = []
        for key, (host, stream) in self._streams(run).items():
            if stream == "launcher":
                tabs.append(Tab(key, f"launcher {host.name}" if several else "launcher"))
                continue
            view = ranks.get(int(stream[4:]))
            mark = None
            if view is not None:
                mark = fmt.rank_mark(view.sample.state, view.sample.exit_code, stopped=stopped)
            tabs.append(Tab(key, stream_label(stream), mark))
        return [*tabs, Tab(MERGED, "merged")]

    def _show(self, run: RunView) -> None:
        assert self._attempt is not None
        streams = self._streams(run)
        if self.stream != MERGED:
            host, stream = streams.get(self.stream, (run.host, self.stream))
            self.pane.show(host.name, run.id, self._attempt, stream)
            self._shown = None
            return
        wanted = (self._attempt, *((key, host.name) for key, (host, _) in streams.items()))
        if wanted != self._shown:
            self._shown = wanted
            self._show_merged(run, streams)

    def _show_merged(self, run: RunView, streams: Mapping[str, tuple[HostView, str]]) -> None:
        assert self._attempt is not None
        session = self.encamp.fleet.session
        merged = MergedSource(
            [
                SessionSource(session(host.name), run.id, self._attempt, stream)
                for host, stream in streams.values()
            ]
        )
        labels = [tab.label for tab in self._tabs(run) if tab.key != MERGED]
        width = max(map(len, labels)) + 1

        def prefix(offset: int) -> tuple[str, int] | None:
            index = merged.origin(offset)
            return (labels[index].rjust(width - 1), index) if index is not None else None

        self.pane.show_source(merged, prefix=prefix, prefix_width=width)

    # --- keys -----------------------------------------------------------------------------------------

    @on(StreamTabs.Chosen)
    def _chosen(self, event: StreamTabs.Chosen) -> None:
        self.action_stream(event.key)

    def action_stream(self, stream: str) -> None:
        """Look at another stream."""
        run = self.found()
        if run is None or all(tab.key != stream for tab in self._tabs(run)):
            return
        self.stream = stream
        if stream != MERGED:
            self._single = stream
        self.refresh_now()

    def action_step(self, steps: int) -> None:
        """Look at the next or the previous stream."""
        run = self.found()
        if run is not None:
            keys = [tab.key for tab in self._tabs(run)]
            at = keys.index(self.stream) if self.stream in keys else 0
            self.action_stream(keys[(at + steps) % len(keys)])

    def action_merged(self) -> None:
        """Look at all ranks as one log, or again at the one looked at before."""
        self.action_stream(self._single if self.stream == MERGED else MERGED)

    def action_attempt(self, steps: int) -> None:
        """Look at an earlier or a later attempt."""
        run = self.found()
        if run is not None and self._attempt is not None:
            self._attempt = max(1, min(run.attempt, self._attempt + steps))
            self.refresh_now()


def _launcher_key(host: HostView) -> str:
    return f"launcher on {host.name}"
