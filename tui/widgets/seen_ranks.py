"""Rows of ranks as a report saw them: where each was matters more than what it cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent.diagnosis.evidence import Rank
from agent.diagnosis.verdict import RankPart

from .. import diagnosis_facts
from .. import formatting as fmt
from ..fleet.diagnosis import Report
from .columns import Cell, Column, Slot, line
from .toned import Piece

DEVICE = (
    Column("gpu", "GPU", 3, right=True, keep=11),
    Column("util", "UTIL", 5, right=True, keep=10),
    Column("power", "POWER", 6, right=True, keep=9),
)
"""Of a rank's GPU."""


def columns(report: Report, *, gpus: bool | None = None, names: Collection[str] = ()) -> list[Column]:
    """The columns for the ranks of a report; `names` are those of their hosts, as far as they are shown.

    `gpus` is whether any uses one; None is as the report knows. What only the living have is left out when
    no rank lives.
    """
    alive = lives(report)
    seen = {rank.rank: rank for rank in report.evidence.ranks}
    if gpus is None:
        gpus = any(rank.gpu is not None for rank in seen.values())
    names = names or {rank.host for rank in seen.values()}
    host = max(map(len, names), default=4) if len(names) > 1 else 0
    parts = report.diagnosis.ranks
    positions = _widest(diagnosis_facts.collective(part.collective) for part in parts)
    spots = _widest(diagnosis_facts.where(part, seen.get(part.rank)) for part in parts)
    return [
        Column("mark", "", 1, keep=20, gap=0),
        Column("rank", "RANK", 4, right=True, keep=19, gap=1),
        *([Column("host", "HOST", max(4, min(10, host)), keep=14, widest=min(32, host))] if host else []),
        *((DEVICE if alive else DEVICE[:1]) if gpus else ()),
        *([Column("cpu", "CPU", 6, right=True, keep=4)] if alive else []),
        Column("step", "STEP", 8, right=True, keep=13),
        *(
            [Column("collective", "COLLECTIVE", max(10, min(21, positions)), keep=15, widest=positions)]
            if alive or positions > 1
            else []
        ),
        Column("where", "WHERE", max(5, min(24, spots)), keep=17, widest=spots),
        Column("process", "PROCESS", 10, keep=16),
    ]


def lives(report: Report) -> bool:
    """Whether a rank was running."""
    return any(rank.state == "running" for rank in report.evidence.ranks)


def _widest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def pieces(report: Report, rank: Rank, part: RankPart | None, slots: Sequence[Slot]) -> list[Piece]:
    """The row of one rank."""
    alive = rank.state == "running"
    to_blame = rank.rank in report.diagnosis.culprits
    mark = fmt.rank_mark(rank.state, rank.exit_code, stopped=report.state in ("stopped", "stopping"))
    dim = consequence(report, rank)
    if dim:
        mark = fmt.Mark("○", mark.word, fmt.QUIET)
    elif alive and to_blame:
        mark = fmt.Mark("▲", mark.word, fmt.TROUBLE)
    cells: dict[str, Cell] = {
        "mark": (mark.glyph, mark.tone),
        "rank": (str(rank.rank), "strong" if to_blame else ""),
        "host": (rank.host, "quiet"),
        "cpu": fmt.percent(None if rank.cpu_share is None else 100 * rank.cpu_share) if alive else fmt.NONE,
        "step": fmt.NONE if rank.step is None else fmt.count(rank.step),
        "process": fmt.PROCESS_WORDS.get(rank.process_state, mark.word) if alive else (mark.word, mark.tone),
        **told(report, rank, part),
    }
    if rank.gpu is not None:
        cells["gpu"] = str(rank.gpu.index)
        cells["util"] = fmt.percent(rank.gpu.utilization_percent) if alive else fmt.NONE
        cells["power"] = fmt.watts(rank.gpu.power_watts) if alive else fmt.NONE
    first = [slot for slot in slots if slot.column.key == "mark"]
    rest = [slot for slot in slots if slot.column.key != "mark"]
    return line(first, cells) + line(rest, cells, "quiet" if dim else None)


def told(report: Report, rank: Rank | None, part: RankPart | None) -> dict[str, Cell]:
    """The cells that only a diagnosis can fill."""
    number = rank.rank if rank is not None else part.rank if part is not None else None
    return {
        "collective": diagnosis_facts.collective(part.collective if part is not None else None),
        "where": (
            diagnosis_facts.where(part, rank),
            "strong" if number in report.diagnosis.culprits else "",
        ),
    }


def consequence(report: Report, rank: Rank) -> bool:
    """Whether a rank has failed because another one had, as far as the report tells."""
    return rank.state in ("exited", "lost") and rank.exit_code != 0 and report.consequence(rank)
