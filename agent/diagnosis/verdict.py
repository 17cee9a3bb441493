"""What a diagnosis says."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from .evidence import Frame

VERDICTS = (
    "collective-missing", "collective-mismatch", "stopped", "kernel-wait", "dead", "exited-early",
    "out-of-memory", "gil-held", "thread-deadlock", "data-starved", "slow-storage", "network", "gpu-spin",
    "gpu-fault", "nan", "straggler", "host-unreachable", "unknown", "healthy",
)  # fmt: skip
"""`unknown` says that something is wrong and not what; `healthy` that nothing is."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One piece of evidence, for people."""

    rank: Optional[int]
    """None for what is about a host or about all ranks."""
    signal: str
    """Where it was seen: process, stack, collective, log, gpu, memory, host, progress, exit, nccl-ras."""
    text: str


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a rank is in the process group in which it is furthest behind, or in its first."""

    enqueued: int
    completed: int
    name: str
    """The collective it waits in, or the last one."""


@dataclasses.dataclass(frozen=True)
class RankPart:
    """One rank in a diagnosis."""

    rank: int
    host: str
    step: Optional[int]
    collective: Optional[Position]
    process_state: str
    stack: Tuple[Frame, ...]


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The verdict on an attempt, who is to blame and what says so."""

    verdict: str
    sentence: str
    """What happens, in one sentence for the person on call."""
    culprits: Tuple[int, ...] = ()
    confidence: float = 0.0
    """From 0 to 1."""
    since_seconds: float = 0.0
    """How long nothing has gone on."""
    evidence: Tuple[Finding, ...] = ()
    ranks: Tuple[RankPart, ...] = ()

    @property
    def alarming(self) -> bool:
        """Whether somebody has to do something."""
        return self.verdict not in ("healthy", "straggler")
