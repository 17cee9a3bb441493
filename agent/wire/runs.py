"""Runs as a host knows them: their state, their ranks, and how they say that they train."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Tuple

from .limits import LARGEST_COUNT, WORD
from .spec import Node


@dataclasses.dataclass(frozen=True)
class RankSample:
    """One rank's process as seen from outside, and its progress as counted by the shim."""

    rank: int
    local_rank: int
    state: str
    pid: Optional[int] = None
    process_state: Optional[str] = None
    """The letter of /proc/PID/stat: R running, S sleeping, D in the kernel, T stopped, Z dead."""
    gpu: Optional[int] = None
    """Index into the host's GPUs, where the rank uses one."""
    step: Optional[int] = None
    """Optimizer steps so far in this attempt, or the trainer's own step where it reports one."""
    step_time: Optional[float] = None
    """Host's wall clock at the last step."""
    step_seconds: Optional[float] = None
    """Seconds per step, smoothed."""
    cpu_percent: Optional[float] = None
    rss_bytes: Optional[int] = None
    log_bytes: int = 0
    exit_code: Optional[int] = None
    phase: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Training:
    """How the work is shared, as the trainer said when it began. Empty and 0 are what it did not say.

    `mesh_data` x `mesh_tensor` x `mesh_pipeline` ranks take part; those of `mesh_data` have samples of their
    own, and hold `mesh_replicas` whole copies of the model where they hold them in shards.
    """

    strategy: str = ""
    precision: str = ""
    ranks: int = 0
    mesh_data: int = 0
    mesh_tensor: int = 0
    mesh_pipeline: int = 0
    mesh_replicas: int = 0
    global_batch: int = 0
    micro_batch: int = 0
    accumulation: int = 0
    steps: int = 0
    parameters: int = 0


@dataclasses.dataclass(frozen=True)
class Ranks:
    """All ranks of a run's current attempt on this host, once a second while it lives and once at its end."""

    run: str
    attempt: int
    time: float
    ranks: Tuple[RankSample, ...]
    training: Optional[Training] = None
    """None for a program that says nothing of itself."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as this host knows it; sent on connecting and on every change.

    `nproc_per_node` ranks of its `world_size` are here, the first of them `node_rank * nproc_per_node`.
    """

    run: str
    name: str
    profile: str
    strategy: str
    attempt: int
    state: str
    reason: str
    """One sentence: why it failed, who stopped it; empty while there is nothing to say."""
    created: float
    started: float
    """Start of the current attempt, host's wall clock."""
    ended: Optional[float]
    world_size: int
    nproc_per_node: int
    python: str
    command: Tuple[str, ...]
    cwd: str
    exit_code: Optional[int] = None
    nodes: Tuple[Node, ...] = ()
    """All hosts of the current attempt in the order of their node ranks; empty for a run on one host."""
    node_rank: int = 0
    code: str = ""
    """The project's files that it runs: name, beginning of the hash, revision."""


@dataclasses.dataclass(frozen=True)
class Removed:
    """A run's folder was removed: this host knows nothing of it any more."""

    run: str


def training(record: Optional[Dict[str, Any]]) -> Optional[Training]:
    """What is believed of a record in which a program says how it trains; None when that is nothing."""
    kept: Dict[str, Any] = {}
    for name, nothing in vars(Training()).items():
        value = (record or {}).get(name)
        if type(value) is not type(nothing) or not value:
            continue
        if WORD.match(value) if isinstance(value, str) else 0 < value <= LARGEST_COUNT:
            kept[name] = value
    return Training(**kept) if kept else None
