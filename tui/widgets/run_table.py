"""All runs of the fleet, newest first; those in trouble on top."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from .. import formatting as fmt
from .. import run_facts
from ..fleet.store import RunView, Store
from .columns import Cell, Column, line, width_of
from .table import Table, matches
from .toned import Piece

SHOWN_REASONS = ("stalled", "failed", "stopped", "stopping", "unreachable")


class RunTable(Table[str]):
    """Runs by their ids."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="runs.open", tooltip="open the run"),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__(id="runs")
        self.store = store
        self.filter = ""
        self._found: dict[str, RunView] = {}

    def keys(self) -> Sequence[str]:
        """Live runs first, then the others; newest first in both."""
        self._found = {run.id: run for run in reversed(self.store.runs()) if self._matches(run)}
        return sorted(
            self._found, key=lambda run: (not self._found[run].live, -self._found[run].info.started)
        )

    def _matches(self, run: RunView) -> bool:
        words = (run.id, *run.hosts, run.state, run.info.strategy, run.info.profile)
        return matches(self.filter, words)

    def columns(self) -> Sequence[Column]:
        """Run and state stay to the last."""
        longest = max((len(run) for run in self._found), default=3)
        hosts = max((len(" ".join(run.hosts)) for run in self._found.values()), default=4)
        reasons = any(self._reason(run) for run in self._found.values())
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("run", "RUN", max(8, min(20, longest)), keep=19, widest=min(48, longest), gap=1),
            Column("state", "STATE", 11, keep=18),
            Column("hosts", "HOSTS", max(5, min(16, hosts)), keep=14, widest=min(40, hosts)),
            Column("strategy", "STRATEGY", 8, keep=3, widest=19),
            Column("ranks", "RANKS", 5, right=True, keep=12),
            Column("attempt", "ATTEMPT", 7, right=True, keep=5),
            Column("step", "STEP", 8, right=True, keep=10),
            Column("started", "STARTED", 7, keep=6, widest=12),
            Column("took", "TOOK", 12, keep=9),
            *([Column("reason", "", 30, keep=7, widest=100)] if reasons else []),
        ]

    def signature(self, key: str) -> Hashable:
        """Revisions, and the seconds of a run that is going on."""
        run = self._found[key]
        return run.id, run.key, int(self.now) if run.live else None

    def pieces(self, key: str) -> list[Piece]:
        """One run."""
        run = self._found[key]
        info = run.info
        mark = fmt.run_mark(run.state)
        tone = "quiet" if not run.live or run_facts.unasked(run) else ""
        code = "" if run.exit_code in (None, 0) else f" {run.exit_code}"
        cells: dict[str, Cell] = {
            "mark": (mark.glyph, mark.tone),
            "run": (info.run, "strong" if run.live else ""),
            "state": (mark.word + (code if mark.word == "failed" else ""), mark.tone),
            "hosts": (_names(run.hosts, width_of(self.slots, "hosts")), tone),
            "strategy": (info.strategy, tone),
            "ranks": (str(info.world_size), tone),
            "attempt": (str(info.attempt), tone),
            "step": (fmt.NONE if run.step is None else fmt.count(run.step), tone),
            "started": (fmt.clock(info.started), tone),
            "took": (fmt.duration(run_facts.elapsed(run)), tone),
            "reason": (self._reason(run), "quiet"),
        }
        return line(self.slots, cells)

    def _reason(self, run: RunView) -> str:
        """Why the run is as it is, where that is worth knowing at a glance."""
        state, reason = run.standing()
        return reason if state in SHOWN_REASONS else ""


def _names(hosts: Sequence[str], width: int) -> str:
    """The hosts; where they do not fit, the first ones and how many more."""
    shorter = (f"{' '.join(hosts[:end])} +{len(hosts) - end}" for end in range(len(hosts) - 1, 0, -1))
    return fmt.choose((" ".join(hosts), *shorter), width)
