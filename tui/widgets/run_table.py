"""All runs of the fleet, newest first; those in trouble on top."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from .. import formatting as fmt
from .. import run_facts
from ..fleet.store import HostView, Link, RunView, Store
from .columns import Cell, Column, line
from .table import Table, matches
from .toned import Piece

SHOWN_REASONS = ("failed", "stopped", "stopping")


class RunTable(Table[str]):
    """Runs by their ids."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="runs.open", tooltip="open the run"),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__(id="runs")
        self.store = store
        self.filter = ""
        self._found: dict[str, tuple[HostView, RunView]] = {}

    def keys(self) -> Sequence[str]:
        """Live runs first, then the others; newest first in both."""
        self._found = {run.id: (host, run) for host, run in self.store.runs() if self._matches(host, run)}
        return sorted(self._found, key=lambda run: not self._found[run][1].live)

    def _matches(self, host: HostView, run: RunView) -> bool:
        words = (run.id, host.name, host.run_state(run), run.info.strategy, run.info.profile)
        return matches(self.filter, words)

    def columns(self) -> Sequence[Column]:
        """Run and state stay to the last."""
        longest = max((len(run) for run in self._found), default=3)
        hosts = max((len(host.name) for host, _ in self._found.values()), default=4)
        reasons = any(self._reason(host, run) for host, run in self._found.values())
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("run", "RUN", max(8, min(20, longest)), keep=19, widest=min(48, longest), gap=1),
            Column("state", "STATE", 11, keep=18),
            Column("host", "HOST", max(4, min(12, hosts)), keep=14, widest=min(32, hosts)),
            Column("strategy", "STRATEGY", 8, keep=3),
            Column("ranks", "RANKS", 5, right=True, keep=12),
            Column("attempt", "ATTEMPT", 7, right=True, keep=5),
            Column("step", "STEP", 8, right=True, keep=10),
            Column("started", "STARTED", 7, keep=6, widest=12),
            Column("took", "TOOK", 12, keep=9),
            *([Column("reason", "", 30, keep=7, widest=100)] if reasons else []),
        ]

    def signature(self, key: str) -> Hashable:
        """Revisions, and the seconds of a run that is going on."""
        host, run = self._found[key]
        return run.revision, run.info, host.link, int(self.now) if run.live else None

    def pieces(self, key: str) -> list[Piece]:
        """One run."""
        host, run = self._found[key]
        info = run.info
        mark = fmt.run_mark(host.run_state(run))
        tone = "quiet" if not run.live or host.link is not Link.LIVE else ""
        code = "" if info.exit_code in (None, 0) else f" {info.exit_code}"
        cells: dict[str, Cell] = {
            "mark": (mark.glyph, mark.tone),
            "run": (info.run, "strong" if run.live else ""),
            "state": (mark.word + (code if mark.word == "failed" else ""), mark.tone),
            "host": (host.name, tone),
            "strategy": (info.strategy, tone),
            "ranks": (str(info.world_size), tone),
            "attempt": (str(info.attempt), tone),
            "step": (fmt.NONE if run.step is None else fmt.count(run.step), tone),
            "started": (fmt.clock(info.started), tone),
            "took": (fmt.duration(run_facts.elapsed(host, run)), tone),
            "reason": (self._reason(host, run), "quiet"),
        }
        return line(self.slots, cells)

    def _reason(self, host: HostView, run: RunView) -> str:
        """Why the run is as it is, where that is worth knowing at a glance."""
        state = host.run_state(run)
        if state == "unreachable":
            return host.message or f"{host.name} cannot be asked"
        return run.info.reason if state in SHOWN_REASONS else ""
