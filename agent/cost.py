"""What encamp itself takes on the host: shown to the user beside everything else."""

from __future__ import annotations

import time
from typing import Dict, Iterable, Optional

from . import process, wire


class CostMeter:
    """Adds up processes; the CPU share is since the call before."""

    def __init__(self) -> None:
        self._before: Dict[int, int] = {}
        self._before_at = 0.0

    def read(self, pids: Iterable[int]) -> wire.AgentCost:
        """CPU and memory of these processes together; one that has just come counts from the next call."""
        ticks: Dict[int, int] = {}
        rss = 0
        for pid in pids:
            found = process.stat(pid)
            if found is not None:
                ticks[pid] = found.cpu_ticks
                rss += found.rss_bytes
        now = time.monotonic()
        percent: Optional[float] = None
        if self._before and now > self._before_at:
            used = sum(max(0, ticks[pid] - before) for pid, before in self._before.items() if pid in ticks)
            percent = 100.0 * used / process.TICKS_PER_SECOND / (now - self._before_at)
        self._before, self._before_at = ticks, now
        return wire.AgentCost(percent, rss)
