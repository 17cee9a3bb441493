"""What is known about the ranks of an attempt at one moment: all that a diagnosis rests on.

Each host gathers the part of its own ranks (see `..signals`), whoever asks puts the parts together. Where
something could not be found out the field is None or empty, and a diagnosis has to do without it.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Frame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str
    user_code: bool
    """Neither Python's own, nor an installed package, nor ours."""
    source: str = ""
    """The line itself, where the file could be read."""


@dataclasses.dataclass(frozen=True)
class Thread:
    """One Python thread, its innermost frame first."""

    name: str
    main: bool
    frames: Tuple[Frame, ...]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One entry of torch's flight record."""

    sequence: int
    """Its number in its process group, from 1 on; for point-to-point messages that of these."""
    name: str
    """As in `gloo:all_reduce` or `nccl:send 0->1`."""
    shape: str
    """Sizes and type of what went in, as in `10x20 float`."""
    created: float
    """When it was enqueued: seconds since the epoch by the host's clock."""
    retired: bool
    """It is over, as far as torch knows."""


@dataclasses.dataclass(frozen=True)
class Group:
    """How far a rank is in one process group."""

    name: str
    """torch's name for it, the same on all its ranks."""
    description: str
    ranks: Tuple[int, ...]
    """Its members; empty where that is not recorded, and then it may be all ranks."""
    enqueued: int
    """Number of the last collective that this rank has called, 0 before the first."""
    completed: int
    """Number of the last that is over."""
    recent: Tuple[Collective, ...] = ()
    """The newest entries, oldest first."""


@dataclasses.dataclass(frozen=True)
class Child:
    """A process that a rank has started, such as a worker of a DataLoader."""

    pid: int
    name: str
    state: str
    """The letter of /proc/PID/stat."""
    cpu_share: Optional[float] = None
    """Cores that it used since the earlier look."""
    frames: Tuple[Frame, ...] = ()
    """Its main thread, where it could be asked."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The GPU of a rank. `state` is one of `wire.GPU_STATES`."""

    index: int
    state: str
    utilization_percent: Optional[float] = None
    power_watts: Optional[float] = None
    power_limit_watts: Optional[float] = None
    xid: Optional[int] = None
    """The error that the driver reported for it since the attempt began; of several the gravest."""
    xid_time: Optional[float] = None
    """When, by the host's wall clock."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a rank had of memory at one moment: seconds since the epoch by the host's clock."""

    time: float
    rss_bytes: int


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank. Shares and differences are between two looks, `Evidence.window_seconds` apart."""

    rank: int
    host: str
    state: str
    """One of `wire.RANK_STATES`."""
    pid: Optional[int] = None
    exit_code: Optional[int] = None
    ended: Optional[float] = None
    """When it was over: seconds since the epoch by the host's clock."""
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    """Of the error that ended it, as Python prints it; of a long one the end."""
    process_state: str = ""
    """The letter of /proc/PID/stat: R running, S sleeping, D in the kernel, T stopped, Z dead."""
    runnable: bool = False
    """At both looks its main thread could run (R), whether it got a turn or not."""
    wait_channel: str = ""
    """Kernel function in which the main thread sleeps."""
    cpu_share: Optional[float] = None
    """Cores that the process used."""
    main_cpu_share: Optional[float] = None
    """Cores that its main thread used, 1 at most."""
    io_bytes: Optional[int] = None
    """Bytes that it read and wrote, by system calls and of files: one that goes to a disk counts twice."""
    log_bytes: int = 0
    """Bytes by which its log grew."""
    rss_bytes: Optional[int] = None
    step: Optional[int] = None
    step_age: Optional[float] = None
    """Seconds since its last sign of progress: a step, a collective, a new phase, a record."""
    step_seconds: Optional[float] = None
    """What a step takes in this run."""
    phase: str = ""
    """As the program says: init, compile, train, eval, save."""
    phase_age: Optional[float] = None
    loss: str = ""
    """The last that it reported, as a word when it is not finite: nan, inf, -inf."""
    threads: Tuple[Thread, ...] = ()
    earlier: Tuple[Frame, ...] = ()
    """The main thread's stack at the earlier look."""
    gil_free: Optional[bool] = None
    """Whether Python code of another thread could run."""
    groups: Tuple[Group, ...] = ()
    recorded: bool = False
    """Whether its torch keeps a flight record, however empty."""
    children: Tuple[Child, ...] = ()
    gpu: Optional[Gpu] = None
    memory: Tuple[Memory, ...] = ()
    """Of a rank that is over the last minutes, oldest first."""
    last_words: str = ""
    """The line of its log that says why it ended, where it could not say so itself."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One host of the attempt."""

    name: str
    reachable: bool
    silent_seconds: float = 0.0
    """Since the last message, as its viewer sees it."""
    memory_limit_bytes: Optional[int] = None
    """What all processes of the attempt's control group together may use, or what the machine has."""
    oom_kills: int = 0
    """Processes of the attempt's control group that were killed for want of memory since it began."""
    clock_offset: float = 0.0
    """Seconds by which its clock is ahead of the viewer's."""
    stuck_sockets: Tuple[str, ...] = ()
    """Connections of its ranks whose bytes nobody acknowledges: `rank 3 -> 10.0.0.5:4123`."""
    nccl_ras: str = ""
    """What NCCL says of all ranks with which its ranks are connected: lines, see `ras`."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All ranks of one attempt."""

    run: str
    attempt: int
    time: float
    world_size: int
    window_seconds: float
    ranks: Tuple[Rank, ...]
    hosts: Tuple[Host, ...]
    allowed_seconds: float = 0.0
    """How long this run's rhythm lets a rank go without progress; 0 where there is no rhythm yet."""
