"""Who failed first when an attempt has ended: the others' ends are consequences."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Tuple

from .evidence import Evidence, Rank

CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|ncclRemoteError"
    r"|remote process exited|NCCL communicator was aborted|watchdog|timed? ?out"
    r"|DistNetworkError|DistStoreError|SignalException"
    r"|socket timeout|failed to recv|Application timeout|recvValue",
    re.I,
)
"""What ranks say that lost another."""

MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|MemoryError|DefaultCPUAllocator|Cannot allocate|bad_alloc", re.I
)

WORKER = re.compile(r"DataLoader worker .{0,80}(killed|exited)", re.I)
"""What torch says when a process that makes batches is gone."""

SIGKILL, SIGTERM = -9, -15


def is_consequence(rank: Rank) -> bool:
    """Whether this end follows from that of another rank, as far as its own words tell."""
    if rank.exit_code in (SIGTERM, 128 - SIGTERM):
        return True
    return bool(CONSEQUENCE.search(f"{rank.error_type}: {rank.error_message} {rank.last_words}"))


def out_of_memory(rank: Rank, oom_kills: int) -> bool:
    """Whether it ended for want of memory: it says so itself, or the kernel killed it."""
    if MEMORY.search(f"{rank.error_type}: {rank.error_message} {rank.last_words}"):
        return True
    killed = rank.state == "lost" or rank.exit_code in (SIGKILL, 128 - SIGKILL)
    return killed and oom_kills > 0


def lost_worker(rank: Rank) -> bool:
    """Whether it ended because a process that reads data for it did."""
    return bool(WORKER.search(rank.error_message))


def left_before(evidence: Evidence, failures: List[Rank]) -> List[Rank]:
    """Ranks that ended with code 0 before `failures`, all of which are consequences of a lost peer."""
    if not failures or not all(is_consequence(rank) for rank in failures):
        return []
    offsets = {host.name: host.clock_offset for host in evidence.hosts}

    def at(rank: Rank) -> float:
        return float("inf") if rank.ended is None else rank.ended - offsets.get(rank.host, 0.0)

    first = min(map(at, failures))
    return [r for r in evidence.ranks if r.state == "exited" and r.exit_code == 0 and at(r) <= first]


def failed(evidence: Evidence) -> List[Rank]:
    """Ranks that ended other than they should, the first to fail in front, consequences behind."""
    offsets: Dict[str, float] = {host.name: host.clock_offset for host in evidence.hosts}
    ends = [rank for rank in evidence.ranks if rank.state == "lost" or rank.exit_code not in (None, 0)]

    def order(rank: Rank) -> Tuple[bool, float, int]:
        ended = float("inf") if rank.ended is None else rank.ended - offsets.get(rank.host, 0.0)
        return is_consequence(rank), ended, rank.rank

    return sorted(ends, key=order)


def first(evidence: Evidence) -> Optional[Rank]:
    """The rank that failed first."""
    return next(iter(failed(evidence)), None)
