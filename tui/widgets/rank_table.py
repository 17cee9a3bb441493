"""The ranks of a run: one line each, and one for the launcher that started them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from agent import wire

from .. import formatting as fmt
from ..fleet.store import STALE_SECONDS, HostView, Link, RankView, RunView
from ..run_facts import LAUNCHER, end_mark
from .columns import Cell, Column, line, width_of
from .table import Table
from .toned import Piece

GPU_CELLS = ("util", "power", "memory")
"""What a GPU does is the rank's doing only as long as the rank lives."""


class RankTable(Table[int]):
    """Ranks by number; `LAUNCHER` is the last row."""

    def __init__(self) -> None:
        super().__init__(id="ranks")
        self.host: HostView | None = None
        self.run: RunView | None = None

    def show(self, host: HostView, run: RunView, now: float) -> None:
        """Show the ranks of `run`, which is on `host`."""
        self.host, self.run = host, run
        self.tick(now)

    def keys(self) -> Sequence[int]:
        """All ranks that are known, then the launcher."""
        return [*sorted(self.run.ranks), LAUNCHER] if self.run is not None else []

    def columns(self) -> Sequence[Column]:
        """GPU columns only for a run that uses GPUs."""
        ranks = self.run.ranks.values() if self.run is not None else ()
        name = len(self.host.name) if self.host is not None else 4
        device: list[Column] = []
        if any(rank.sample.gpu is not None for rank in ranks):
            device = [
                Column("gpu", "GPU", 3, right=True, keep=15),
                Column("util", "UTIL", 5, right=True, keep=14),
                Column("bar", "", 8, keep=4, widest=12, gap=1),
                Column("power", "POWER", 6, right=True, keep=3),
                Column("memory", "MEMORY", 10, right=True, keep=9),
            ]
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("rank", "RANK", 4, right=True, keep=19, gap=1),
            Column("host", "HOST", max(4, min(10, name)), keep=5, widest=min(32, name)),
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
        """The run's revision, the host's, and the age in seconds."""
        if self.run is None or self.host is None:
            return None
        rank = self.run.ranks.get(key)
        age = None if rank is None else -int(-(self.now - rank.received) // 1)
        return self.run.id, self.run.revision, self.host.revision, age

    def pieces(self, key: int) -> list[Piece]:
        """One rank, or the launcher."""
        if self.run is None or self.host is None:
            return []
        rank = self.run.ranks.get(key)
        if rank is None:
            code = self.run.info.exit_code
            return [("  launcher", "quiet"), ("" if code is None else f"   {fmt.exit_words(code)}", "quiet")]
        old = self.now - rank.received > STALE_SECONDS or self.host.link is not Link.LIVE
        stale = "quiet" if self.run.live and old else None
        cells = self._cells(self.host, self.run, rank)
        mark = cells.pop("mark")
        named = [slot for slot in self.slots if slot.column.key == "mark"]
        rest = [slot for slot in self.slots if slot.column.key != "mark"]
        return line(named, {"mark": mark}) + line(rest, cells, stale)

    def _cells(self, host: HostView, run: RunView, rank: RankView) -> dict[str, Cell]:
        sample = rank.sample
        mark = end_mark(run, rank)
        alive = sample.state in ("running", "starting") and run.live
        cells: dict[str, Cell] = {
            "mark": (mark.glyph, mark.tone),
            "rank": str(sample.rank),
            "host": host.name,
            "step": fmt.NONE if sample.step is None else fmt.count(sample.step),
            "pace": fmt.NONE if sample.step_seconds is None else fmt.step_seconds(sample.step_seconds),
            "phase": sample.phase or fmt.NONE,
            "pid": fmt.NONE if sample.pid is None else str(sample.pid),
            "log": fmt.size(sample.log_bytes),
            "age": fmt.age(self.now - rank.received) if run.live else fmt.NONE,
        }
        if alive:
            cells["cpu"] = fmt.percent(sample.cpu_percent)
            cells["rss"] = fmt.size(sample.rss_bytes)
            state = sample.process_state
            cells["process"] = mark.word if state is None else fmt.PROCESS_WORDS.get(state, state)
        else:
            cells["cpu"] = cells["rss"] = fmt.NONE
            cells["process"] = (mark.word, mark.tone)
        if sample.gpu is not None:
            cells |= self._gpu_cells(host, sample) if alive else dict.fromkeys(GPU_CELLS, fmt.NONE)
            cells["gpu"] = str(sample.gpu)
        return cells

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
