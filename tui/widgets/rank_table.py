"""The ranks of a run: one line each, and one for the launcher that started them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from agent import wire
from agent.diagnosis.evidence import Rank
from agent.diagnosis.verdict import RankPart

from .. import diagnosis_facts
from .. import formatting as fmt
from ..fleet.diagnosis import Report
from ..fleet.store import STALE_SECONDS, HostView, Link, NodeView, RankView, RunView
from ..run_facts import culprits, end_mark, launchers
from . import seen_ranks
from .columns import Cell, Column, line, width_of
from .table import Table
from .toned import Piece

GPU_CELLS = ("util", "power", "memory")
"""What a GPU does is the rank's doing only as long as the rank lives."""


class RankTable(Table[int]):
    """Ranks by number; the launchers, from `LAUNCHER` down, are the last rows."""

    def __init__(self) -> None:
        super().__init__(id="ranks")
        self.run: RunView | None = None
        self._ranks: dict[int, RankView] = {}
        self._ended_for_another = self._stopped = False
        self._report: Report | None = None
        self._parts: dict[int, RankPart] = {}
        self._seen: dict[int, Rank] = {}
        self._blamed: list[int] = []

    def show(
        self, run: RunView, now: float, report: Report | None = None, blamed: Sequence[int] = ()
    ) -> None:
        """Show the ranks of `run`, with a `report` also where each is; ranks that are `blamed` on top."""
        self.run = run
        self._take_report(report, blamed)
        self._ranks = run.ranks
        self._stopped = run.state in ("stopped", "stopping")
        self._ended_for_another = self._stopped or bool(culprits(run))
        self.tick(now)

    def show_past(self, report: Report, now: float) -> None:
        """Show the ranks as they were by a `report` on what is over."""
        self.run = None
        self._take_report(report, ())
        self.tick(now)

    def keys(self) -> Sequence[int]:
        """All ranks that are known, those to blame first, then the launchers."""
        if self.run is None:
            return diagnosis_facts.order(self._report, sorted(self._seen)) if self._report is not None else []
        ranks = sorted(self._ranks)
        if self._report is not None:
            ranks = diagnosis_facts.order(self._report, ranks)
        elif self._blamed:
            ranks.sort(key=lambda rank: rank not in self._blamed)
        return [*ranks, *launchers(self.run)]

    def _take_report(self, report: Report | None, blamed: Sequence[int]) -> None:
        if report is not self._report:
            self._report = report
            self._parts = {part.rank: part for part in report.diagnosis.ranks} if report is not None else {}
            self._seen = {rank.rank: rank for rank in report.evidence.ranks} if report is not None else {}
        self._blamed = list(report.diagnosis.culprits if report is not None else blamed)

    def columns(self) -> Sequence[Column]:
        """GPU columns only for a run that uses GPUs."""
        if self.run is None and self._report is not None:
            return seen_ranks.columns(self._report)
        hosts = self.run.hosts if self.run is not None else ()
        name = max(map(len, hosts), default=4)
        several = len(hosts) > 1
        device: list[Column] = []
        if any(rank.sample.gpu is not None for rank in self._ranks.values()):
            device = [
                Column("gpu", "GPU", 3, right=True, keep=15),
                Column("util", "UTIL", 5, right=True, keep=14),
                Column("bar", "", 8, keep=4, widest=12, gap=1),
                Column("power", "POWER", 6, right=True, keep=3),
                Column("memory", "MEMORY", 10, right=True, keep=9),
            ]
        if self._report is not None:
            found = seen_ranks.columns(self._report, gpus=bool(device), names=hosts)
            age = [Column("age", "AGE", 5, right=True, keep=12)] if seen_ranks.lives(self._report) else []
            return [*found, *age]
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("rank", "RANK", 4, right=True, keep=19, gap=1),
            *(
                [Column("host", "HOST", max(4, min(10, name)), keep=18, widest=min(32, name))]
                if several
                else []
            ),
            *device,
            Column("cpu", "CPU", 6, right=True, keep=8 if device else 14),
            Column("rss", "RSS", 6, right=True, keep=7 if device else 13),
            Column("step", "STEP", 8, right=True, keep=17),
            Column("pace", "s/STEP", 6, right=True, keep=16),
            Column("phase", "PHASE", 7, keep=2),
            Column("process", "PROCESS", 10, keep=11),
            Column("pid", "PID", 7, right=True, keep=1),
            Column("log", "LOG", 6, right=True, keep=0),
            Column("age", "AGE", 5, right=True, keep=18),
        ]

    def signature(self, key: int) -> Hashable:
        """The run's state, the revisions of the rank's host and of the run there, and the age in seconds."""
        if self.run is None and self._report is not None:
            return self._report.evidence.time
        part = self.run.part_of(key) if self.run is not None else None
        if self.run is None or part is None:
            return None
        host, node = part
        rank = self._ranks.get(key)
        age = None if rank is None else -int(-(self.now - rank.received) // 1)
        looked = self._report.evidence.time if self._report is not None else None
        return self.run.id, self.run.state, node.revision, host.revision, age, looked, key in self._blamed

    def pieces(self, key: int) -> list[Piece]:
        """One rank, or the launcher."""
        if self.run is None and self._report is not None:
            return seen_ranks.pieces(self._report, self._seen[key], self._parts.get(key), self.slots)
        part = self.run.part_of(key) if self.run is not None else None
        if self.run is None or part is None:
            return []
        host, node = part
        rank = self._ranks.get(key)
        if rank is None:
            code = node.info.exit_code
            where = f"  launcher on {host.name}" if len(self.run.hosts) > 1 else "  launcher"
            return [(where, "quiet"), ("" if code is None else f"   {fmt.exit_words(code)}", "quiet")]
        old = self.now - rank.received > STALE_SECONDS or host.link is not Link.LIVE
        stale = "quiet" if (node.live and old) or self._is_consequence(key) else None
        cells = self._cells(host, node, rank)
        mark = cells.pop("mark")
        named = [slot for slot in self.slots if slot.column.key == "mark"]
        rest = [slot for slot in self.slots if slot.column.key != "mark"]
        return line(named, {"mark": mark}) + line(rest, cells, stale)

    def _cells(self, host: HostView, node: NodeView, rank: RankView) -> dict[str, Cell]:
        sample = rank.sample
        mark = end_mark(
            rank, live=node.live, ended_for_another=self._ended_for_another, stopped=self._stopped
        )
        alive = sample.state in ("running", "starting") and node.live
        if alive and host.run_state(node) == "unreachable":
            mark = fmt.Mark("?", "unknown", fmt.NOT_KNOWN)
        if self._is_consequence(sample.rank):
            mark = fmt.Mark("○", mark.word, fmt.QUIET)
        elif alive and sample.rank in self._blamed:
            mark = fmt.Mark("▲", mark.word, fmt.TROUBLE)
        elif sample.rank in self._blamed and not self._stopped:
            mark = fmt.rank_mark(sample.state, sample.exit_code)  # be it by the signal that ended others
        cells: dict[str, Cell] = {
            "mark": (mark.glyph, mark.tone),
            "rank": (str(sample.rank), "strong" if sample.rank in self._blamed else ""),
            "host": (host.name, "quiet"),
            "step": fmt.NONE if sample.step is None else fmt.count(sample.step),
            "pace": fmt.NONE if sample.step_seconds is None else fmt.step_seconds(sample.step_seconds),
            "phase": sample.phase or fmt.NONE,
            "pid": fmt.NONE if sample.pid is None else str(sample.pid),
            "log": fmt.size(sample.log_bytes),
            "age": fmt.age(self.now - rank.received) if node.live else fmt.NONE,
        }
        if alive:
            cells["cpu"] = fmt.percent(sample.cpu_percent)
            cells["rss"] = fmt.size(sample.rss_bytes)
            state = sample.process_state
            cells["process"] = mark.word if state is None else fmt.PROCESS_WORDS.get(state, state)
        else:
            cells["cpu"] = cells["rss"] = fmt.NONE
            cells["process"] = (mark.word, mark.tone)
        if self._report is not None:
            number = sample.rank
            cells |= seen_ranks.told(self._report, self._seen.get(number), self._parts.get(number))
        if sample.gpu is not None:
            cells |= self._gpu_cells(host, sample) if alive else dict.fromkeys(GPU_CELLS, fmt.NONE)
            cells["gpu"] = str(sample.gpu)
        return cells

    def _is_consequence(self, number: int) -> bool:
        """Whether a rank has failed because another one had, as far as the report tells."""
        rank = self._seen.get(number)
        return self._report is not None and rank is not None and seen_ranks.consequence(self._report, rank)

    def _gpu_cells(self, host: HostView, sample: wire.RankSample) -> dict[str, Cell]:
        gpus = host.sample.gpu.gpus if host.sample is not None else ()
        gpu = next((gpu for gpu in gpus if gpu.index == sample.gpu), None)
        if gpu is None:
            return {"util": fmt.UNKNOWN}
        use = gpu.utilization_percent
        return {
            "util": fmt.percent(use),
            "bar": (fmt.bar(None if use is None else use / 100, width_of(self.slots, "bar")), "util"),
            "power": fmt.watts(gpu.power_watts),
            "memory": fmt.gib(gpu.memory_used_bytes, gpu.memory_total_bytes),
        }
