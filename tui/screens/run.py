"""One run: how it stands, its curves, its ranks, and the log of the rank that is selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from .. import formatting as fmt
from .. import run_facts, training_facts
from ..examining import NOTHING, Examination
from ..fleet import progress_history
from ..fleet.diagnosis import Report
from ..fleet.errors import EncampError
from ..fleet.store import Link, RunView
from ..widgets.graph import Curve, Graph
from ..widgets.log_pane import LogPane
from ..widgets.run_banner import RunBanner
from ..widgets.stack_view import StackView
from ..widgets.toned import Piece
from .ranks import RanksScreen

UTILIZATION_SECONDS = 300.0
"""How much of the past the utilisation graph shows."""


NO_RANK = 1 << 30
"""No row of the ranks."""


class RunScreen(RanksScreen):
    """The cockpit of one run. One selection, the rank, drives everything below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "diagnose", "diagnose", id="run.diagnose", tooltip="which rank holds it up, and where"),
        Binding("S", "stop", "stop", id="run.stop", tooltip="stop all ranks"),
        Binding("s", "shell", "shell", id="run.shell", tooltip="log in on the host of the selected rank"),
        Binding("D", "get", "get files", id="run.get", tooltip="fetch files, such as a checkpoint"),
        Binding(
            "c",
            "connect",
            "connect now",
            id="run.connect",
            tooltip="connect now to hosts of the run that are not",
        ),
        Binding(
            "n", "launch", "launch", show=False, id="run.launch", tooltip="start another run on this host"
        ),
        # The log's own keys, for when the ranks have the focus.
        Binding(
            "slash",
            "log('search')",
            "search",
            id="log.search",
            key_display="/",
            tooltip="search the log",
            priority=True,
        ),
        Binding("f", "log('follow')", "follow", id="log.follow", tooltip="follow new output, or stop"),
        Binding(
            "w", "log('wrap')", "wrap", show=False, id="log.wrap", tooltip="wrap long lines, or cut them"
        ),
        Binding("t", "log('times')", "time", show=False, id="log.times", tooltip="show when lines arrived"),
    ]

    def __init__(self, run_id: str, rank: int | None = None) -> None:
        super().__init__(run_id)
        self._wanted = rank
        self._attempt: int | None = None
        self._examination: Examination = NOTHING
        self._report: Report | None = None
        """Where the ranks of a run are that stalls, once they were looked at."""
        self._recalled: object = None
        """For which connection and attempt the run's past was asked for."""

    def body(self) -> ComposeResult:
        """Banner, curves, ranks, log."""
        yield RunBanner()
        with Horizontal(id="graphs"):
            yield Graph("loss", line=True, id="loss")
            yield Graph("rate", id="rate")
            yield Graph("util", fixed=100.0, id="util")
        yield from self.ranks_and_more()

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return (
            "run.connect",
            "run.logs",
            "run.diagnose",
            "run.continue",
            "run.restart",
            "run.stop",
            "run.shell",
            "run.get",
            "log.search",
            "log.follow",
            "screen.back",
        )

    def crumbs(self) -> Sequence[str]:
        """The fleet, then this run."""
        return ("fleet", self.run_id)

    def headline(self) -> list[list[Piece]]:
        """How the run is set up."""
        run = self.found()
        return [[(part, "")] for part in run_facts.headline(run)] if run is not None else []

    # --- redrawing ---------------------------------------------------------------------------------------

    def update(self, now: float) -> None:
        """Redraw what changed of the run."""
        run = self.found()
        self.query_one("#graphs").display = run is not None
        self.ranks.display = run is not None
        if run is None:
            self._say_unknown()
            return
        if run.info.attempt != self._attempt:
            if self._chosen_for_user not in (None, self.rank):
                self._wanted = self.rank
            self._chosen_for_user = None
            self._attempt = run.info.attempt
            for graph in self.query(Graph):
                graph.reset()
        self._examination = self.encamp.examinations.keep_up(run, now)
        self._report = self._examination.current(run, now) if run.state == "stalled" else None
        self.query_one(RunBanner).tell(run, now, self._examination, read_only=self.encamp.read_only)
        self._show_graphs(run)
        self.ranks.show(run, now, self._report, run_facts.blamed(run))
        self._select(run)
        self.show_rank()
        self._recall_progress(run)
        stopped, unconnected = run_facts.stopped(run), run_facts.unconnected(run)
        self.bind_for(
            (run.state, run.live, run.leftovers, tuple(unconnected), tuple(stopped), self._host_name())
        )

    def _recall_progress(self, run: RunView) -> None:
        """Have the curves filled with what was reported before we looked, once for each connection."""
        host = run.host
        if host.link is not Link.LIVE or not run.ranks:
            return
        wanted = (host.hello, run.attempt)
        if wanted != self._recalled:
            self._recalled = wanted
            self._recall(host.name, run.attempt, min(run.ranks))

    @work(exclusive=True, group="progress", exit_on_error=False)
    async def _recall(self, host: str, attempt: int, rank: int) -> None:
        try:
            session = self.encamp.fleet.session(host)
            await progress_history.recall(session, self.run_id, attempt, rank)
        except EncampError:
            pass  # the curves begin with what comes; a lost host is asked again when it is back

    def _say_unknown(self) -> None:
        waiting = [host.name for host in self.store.hosts.values() if not host.ready]
        lines: list[list[Piece]] = [
            [(" ? ", "unknown"), (f"No host that answers knows the run {self.run_id}.", "strong")]
        ]
        if waiting:
            lines.append([(f"   Not heard of yet: {', '.join(waiting)}.", "quiet")])
        lines.append(
            [("   esc ", "key"), ("back   ", "quiet"), (":runs ", "key"), ("what there is", "quiet")]
        )
        self.query_one(RunBanner).show(lines)

    def _show_graphs(self, run: RunView) -> None:
        revision = (run.info.attempt, run.revision)
        loss, rate, util = (self.query_one(f"#{name}", Graph) for name in ("loss", "rate", "util"))
        losses = run_facts.metric(run, "loss")
        loss.display = bool(losses)
        value = run_facts.latest(run, "loss")
        number = training_facts.finite(value)
        loss.show(
            Curve("loss", str(value) if number is None else fmt.number(number), losses, bad=number is None),
            revision,
        )
        tokens = run_facts.metric(run, "tokens_per_second")
        if tokens:
            alike = run_facts.latest(run, "tokens_per_second") == run_facts.latest(run, "samples_per_second")
            title = "samples/s" if alike else "tokens/s"  # without tokens the trainer counts samples as such
            rate.show(Curve(title, fmt.si(tokens[-1][1]), tokens), revision)
        else:
            pace = run.pace
            paces = list(zip(pace.times, pace.values, strict=True))
            last = paces[-1][1] if paces else None
            rate.show(Curve("steps/s", fmt.number(last), paces, seconds=UTILIZATION_SECONDS), revision)
        use = run_facts.utilization(run)
        title = "GPU" if run_facts.uses_gpus(run) else "CPU"
        last = use[-1][1] if use else None
        util.show(
            Curve(title, fmt.percent(last), use, seconds=UTILIZATION_SECONDS),
            (revision, *(host.revision for host, _ in run.parts)),
        )

    def _select(self, run: RunView) -> None:
        """Until the user selects a rank: the one asked for, the one to blame, the first one."""
        if self._wanted is not None and self._wanted in run.ranks:
            self.ranks.select(self._wanted)
            self._wanted, self._chosen_for_user = None, NO_RANK
        elif self._chosen_for_user in (None, self.rank):
            first = run_facts.blamed(run)[:1]
            if run.state == "failed":
                first = first or run_facts.culprits(run)
            elif run.state == "stalled":
                first = self.ranks.rows[:1]
            self._chosen_for_user = min(first or run.ranks, default=run_facts.LAUNCHER)
            self.ranks.select(self._chosen_for_user)

    def show_rank(self) -> None:
        """The selected rank's log, and while the run stalls beside it where the rank is."""
        run, host = self.found(), self._host_name()
        if run is not None and host is not None:
            self.query_one(LogPane).show(host, run.id, run.attempt, run_facts.stream(self.rank))
        self.query_one("#below").set_class(self._report is not None, "-stalled")
        if self._report is not None:
            self.query_one(StackView).show(self._report, self.rank)

    def _host_name(self) -> str | None:
        """The host of the selected rank."""
        run = self.found()
        return run_facts.host_of(run, self.rank).name if run is not None else None

    # --- keys --------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what this run can take."""
        if not super().check_action(action, parameters):
            return False
        if action == "log" and parameters == ("search",) and isinstance(self.focused, Input):
            return False
        found = self.found() if self.is_mounted else None
        if action == "stop":
            return found is not None and (found.live or bool(found.leftovers))
        if action in ("launch", "shell", "get", "diagnose"):
            return found is not None
        if action == "connect":
            return found is not None and bool(run_facts.unconnected(found))
        return True

    def action_diagnose(self) -> None:
        """Show which rank holds the run up, and where each of them is."""
        self.do(f"diagnose {self.run_id}")

    def action_stop(self) -> None:
        """Stop the run, after a question."""
        self.do(f"stop {self.run_id}")

    def action_get(self) -> None:
        """Fetch files of the run."""
        self.do(f"get {self.run_id}")

    def action_connect(self) -> None:
        """Connect now to those of the run's hosts that are not connected."""
        run = self.found()
        for host in run_facts.unconnected(run) if run is not None else ():
            self.do(f"connect {host}")

    def action_shell(self) -> None:
        """Log in on the host of the selected rank."""
        host = self._host_name()
        if host is not None:
            self.do(f"shell {host}")

    def action_launch(self) -> None:
        """Start another run on the host of the selected rank."""
        self.encamp.launch("", host=self._host_name())

    def action_log(self, action: str) -> None:
        """Do to the log what one of its keys does."""
        pane = self.query_one(LogPane)
        if action == "search":
            pane.action_search()
        elif action == "follow":
            pane.view.action_follow()
        elif action == "wrap":
            pane.view.action_wrap()
        else:
            pane.view.action_times()
