"""The logs of one attempt of a run, on the whole screen: rank by rank, the launcher's, or all merged."""

from __future__ import annotations

from collections.abc import Sequence
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


class LogsScreen(BaseScreen):
    """All that a run printed. `rank` may be `run_facts.LAUNCHER`."""

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

    def found(self) -> tuple[HostView, RunView] | None:
        """The run and its host, if any host knows it."""
        return self.store.find_run(self.run_id)

    def crumbs(self) -> Sequence[str]:
        """The fleet, the run, its logs."""
        return ("fleet", self.run_id, "logs")

    def headline(self) -> list[list[Piece]]:
        """Where the run is, which attempt this is, and how it stands."""
        found = self.found()
        if found is None or self._attempt is None:
            return []
        host, run = found
        mark = fmt.run_mark(host.run_state(run))
        attempt: list[Piece] = [(f"attempt {self._attempt}", "")]
        if self._attempt != run.info.attempt:
            attempt.append((f" of {run.info.attempt}, > is later", "degraded"))
        return [[(host.name, "quiet")], attempt, [(f"{mark.glyph} {mark.word}", mark.tone)]]

    # --- redrawing ------------------------------------------------------------------------------------

    def update(self, now: float) -> None:  # noqa: ARG002
        """Show the streams there are, and the one that is looked at."""
        found = self.found()
        if found is None:
            self.query_one(StreamTabs).show(
                [[(f" ? no host that answers knows the run {self.run_id}", "unknown")]]
            )
            return
        host, run = found
        self._keep_up(run)
        self.query_one(StreamTabs).put(self._tabs(run), self.stream)
        self._show(host, run)

    def _keep_up(self, run: RunView) -> None:
        """Go on to a new attempt with a reader who follows; leave one alone who reads."""
        if self._attempt is None or (self._attempt == self._newest and self.pane.following):
            self._attempt = run.info.attempt
        self._newest = run.info.attempt

    def _tabs(self, run: RunView) -> list[Tab]:
        current = self._attempt == run.info.attempt
        tabs = [Tab("launcher", "launcher")]
        for rank in sorted(run.ranks) or range(run.info.nproc_per_node):
            view = run.ranks.get(rank)
            mark = fmt.rank_mark(view.sample.state, view.sample.exit_code) if view and current else None
            tabs.append(Tab(run_facts.stream(rank), f"rank {rank}", mark))
        return [*tabs, Tab(MERGED, "merged")]

    def _show(self, host: HostView, run: RunView) -> None:
        assert self._attempt is not None
        if self.stream != MERGED:
            self.pane.show(host.name, run.id, self._attempt, self.stream)
            self._shown = None
            return
        streams = tuple(tab.key for tab in self._tabs(run) if tab.key != MERGED)
        wanted = (host.name, self._attempt, streams)
        if wanted != self._shown:
            self._shown = wanted
            self._show_merged(host, run, streams)

    def _show_merged(self, host: HostView, run: RunView, streams: Sequence[str]) -> None:
        assert self._attempt is not None
        session = self.encamp.fleet.session(host.name)
        merged = MergedSource([SessionSource(session, run.id, self._attempt, stream) for stream in streams])
        labels = [stream_label(stream) for stream in streams]
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
        found = self.found()
        if found is None or all(tab.key != stream for tab in self._tabs(found[1])):
            return
        self.stream = stream
        if stream != MERGED:
            self._single = stream
        self.refresh_now()

    def action_step(self, steps: int) -> None:
        """Look at the next or the previous stream."""
        found = self.found()
        if found is not None:
            keys = [tab.key for tab in self._tabs(found[1])]
            at = keys.index(self.stream) if self.stream in keys else 0
            self.action_stream(keys[(at + steps) % len(keys)])

    def action_merged(self) -> None:
        """Look at all ranks as one log, or again at the one looked at before."""
        self.action_stream(self._single if self.stream == MERGED else MERGED)

    def action_attempt(self, steps: int) -> None:
        """Look at an earlier or a later attempt."""
        found = self.found()
        if found is not None and self._attempt is not None:
            self._attempt = max(1, min(found[1].info.attempt, self._attempt + steps))
            self.refresh_now()
