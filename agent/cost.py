"""What encamp itself takes on the host: shown to the user beside everything else."""

from __future__ import annotations

import collections
import time
from typing import Deque, Dict, Iterable, Optional, Tuple

from . import process, wire

SECONDS = 10.0
"""What the CPU share is the mean of: the kernel counts in ticks of 10 ms, a percent of one second."""


class CostMeter:
    """Adds up processes, call by call."""

    def __init__(self) -> None:
        self._ticks: Dict[int, int] = {}
        self._used = 0
        self._history: Deque[Tuple[float, int]] = collections.deque()
        """Time of a call and the ticks used up to then."""

    def read(self, pids: Iterable[int]) -> wire.AgentCost:
        """CPU and memory of these processes together; one that has just come counts from the next call."""
        before, self._ticks = self._ticks, {}
        rss = 0
        for pid in pids:
            found = process.stat(pid)
            if found is not None:
                self._ticks[pid] = found.cpu_ticks
                self._used += max(0, found.cpu_ticks - before.get(pid, found.cpu_ticks))
                rss += found.rss_bytes
        now = time.monotonic()
        self._history.append((now, self._used))
        while len(self._history) > 2 and now - self._history[1][0] >= SECONDS:
            self._history.popleft()
        start, used = self._history[0]
        percent: Optional[float] = None
        if now > start:
            percent = 100.0 * (self._used - used) / process.TICKS_PER_SECOND / (now - start)
        return wire.AgentCost(percent, rss)
