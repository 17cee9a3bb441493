"""The last minutes of a host and of an attempt's ranks, as rows of numbers in memory.

They are written into the attempt's folder when something goes wrong with it, and at its end: what there was
to see is then still known when nobody looked.
"""

from __future__ import annotations

import collections
import json
import os
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import files, values, wire
from .diagnosis.evidence import Memory

FILE = "telemetry.json"

FINE, COARSE, EVERY = 60, 60, 10
"""Rows a second apart that are kept, and older ones of which every tenth is: eleven minutes in all."""

MANY_RANKS = 32
"""With so many ranks on a host every second row of them is written, with twice as many every third."""

HOST = ("time", "cpu_percent", "memory_used_bytes")
GPU = (
    "time", "utilization_percent", "power_watts", "memory_used_bytes", "temperature_celsius",
)  # fmt: skip
RANK = ("time", "step", "rss_bytes", "cpu_percent")

MAX_POINTS = 40
"""Of a rank's memory that evidence has."""

Number = Optional[float]
Row = Tuple[Number, ...]


class Recent:
    """Rows of one thing, by the wall clock. `add` one about once a second."""

    def __init__(self) -> None:
        self._fine: Deque[Row] = collections.deque(maxlen=FINE)
        self._coarse: Deque[Row] = collections.deque(maxlen=COARSE)
        self._added = 0

    def add(self, *row: Number) -> None:
        """Keep one row, its time in front."""
        if self._added % EVERY == 0:
            self._coarse.append(row)
        self._added += 1
        self._fine.append(row)

    def rows(self, every: int = 1) -> List[Row]:
        """All that is kept, oldest first, or every such row, the newest among them."""
        first = self._fine[0][0] if self._fine else 0.0
        older = [row for row in self._coarse if (row[0] or 0.0) < (first or 0.0)]
        return [*older, *self._fine][::-1][::every][::-1]


class HostRecord:
    """A host's samples."""

    def __init__(self) -> None:
        self._host = Recent()
        self._gpus: Dict[int, Recent] = {}
        self._last: Optional[wire.Sample] = None

    def add(self, sample: wire.Sample) -> None:
        """Take in a sample."""
        self._last = sample
        self._host.add(round(sample.time, 1), sample.cpu.percent, sample.memory.used_bytes)
        for gpu in sample.gpu.gpus:
            self._gpus.setdefault(gpu.index, Recent()).add(
                round(sample.gpu.time, 1), *(getattr(gpu, name) for name in GPU[1:])
            )

    def tables(self) -> Dict[str, Any]:
        """What is kept, as JSON."""
        last = self._last
        return {
            "memory_limit_bytes": None if last is None else last.memory.limit_bytes,
            "host": _table(HOST, self._host.rows()),
            "gpus": {str(index): _table(GPU, recent.rows()) for index, recent in self._gpus.items()},
            "xids": {
                str(gpu.index): [[xid.time, xid.code] for xid in gpu.xids]
                for gpu in (() if last is None else last.gpu.gpus)
                if gpu.xids
            },
        }


class RanksRecord:
    """The ranks of an attempt, live and over."""

    def __init__(self) -> None:
        self._ranks: Dict[int, Recent] = {}
        self._over: Tuple[int, ...] = ()

    def add(self, at: float, samples: Sequence[wire.RankSample]) -> bool:
        """Take in how the ranks are. Returns whether one of them is over that was not before."""
        for sample in samples:
            if sample.state == "running":
                cpu = None if sample.cpu_percent is None else round(sample.cpu_percent, 1)
                self._ranks.setdefault(sample.rank, Recent()).add(
                    round(at, 1), sample.step, sample.rss_bytes, cpu
                )
        before, self._over = self._over, tuple(s.rank for s in samples if s.state in ("exited", "lost"))
        return bool(set(self._over) - set(before))

    def tables(self) -> Dict[str, Any]:
        """What is kept, as JSON."""
        every = 1 + len(self._ranks) // MANY_RANKS
        return {"ranks": {str(rank): _table(RANK, kept.rows(every)) for rank, kept in self._ranks.items()}}


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Dict[str, Any]:
    return {"columns": columns, "rows": rows}


def keep(attempt_dir: str, host: HostRecord, ranks: RanksRecord) -> None:
    """Write both into the attempt's folder, unless that is gone or the disk is full."""
    data = json.dumps({**host.tables(), **ranks.tables()}, separators=(",", ":"))
    try:
        files.write_bytes(os.path.join(attempt_dir, FILE), data.encode())
    except OSError:
        pass


def kept(attempt_dir: str) -> Dict[str, object]:
    """What `keep` has written; empty where it has not."""
    return files.read_json(os.path.join(attempt_dir, FILE)) or {}


def memory_limit(found: Mapping[str, object]) -> Optional[int]:
    """Bytes of memory that the host has, or that its control group may use, in what `kept` has given."""
    limit = values.integer(found.get("memory_limit_bytes"))
    return limit if limit is not None and 0 < limit < 2**63 else None


def xids_of(found: Mapping[str, object]) -> Iterator[Tuple[int, float, int]]:
    """Index of the GPU, time and number of each XID there."""
    for index, entries in values.table(found.get("xids")).items():
        for entry in entries if isinstance(entries, list) else ():
            at, code = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
            number, when = values.integer(code), values.number(at, -1.0)
            if number is not None and str(index).isdecimal() and 0 <= number < 2**32 and 0 < when < 1e12:
                yield int(str(index)), when, number


def memory_of(found: Mapping[str, object], rank: int) -> Tuple[Memory, ...]:
    """The history of a rank's memory there: the newest points all, of older ones some."""
    table = values.table(values.table(found.get("ranks")).get(str(rank)))
    rows = table.get("rows")
    points = []
    for row in rows[-2 * (FINE + COARSE) :] if isinstance(rows, list) else ():
        at, rss = (row[0], row[2]) if isinstance(row, list) and len(row) == len(RANK) else (None, None)
        size, when = values.integer(rss), values.number(at, -1.0)
        if size is not None and 0 <= size < 2**63 and 0 < when < 1e12:
            points.append(Memory(when, size))
    older, newest = points[: -MAX_POINTS // 2], points[-MAX_POINTS // 2 :]
    step = 1 + len(older) // (MAX_POINTS // 2)
    return (*older[::step], *newest)
