"""Telemetry of a host: what its daemon reads of the machine, its GPUs and itself once a second."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple


@dataclasses.dataclass(frozen=True)
class CpuSample:
    """`percent` is of `limit_cores` (100 = all that this host may use); None until two readings exist."""

    logical_cores: int
    limit_cores: float
    percent: Optional[float]
    load1: float
    load5: float
    load15: float
    throttled_percent: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class MemorySample:
    """`limit_bytes` is the smaller of the machine's memory and the cgroup's limit."""

    used_bytes: int
    limit_bytes: int
    from_cgroup: bool


@dataclasses.dataclass(frozen=True)
class SpaceSample:
    """A file system: `/dev/shm`, or the one that holds `ENCAMP_HOME`."""

    path: str
    used_bytes: int
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class PidsSample:
    """Processes and threads, against the cgroup's limit on them."""

    used: int
    limit: int


@dataclasses.dataclass(frozen=True)
class NetworkSample:
    """All interfaces but loopback, bytes per second; None until two readings exist."""

    receive_bytes_per_second: Optional[float]
    transmit_bytes_per_second: Optional[float]


@dataclasses.dataclass(frozen=True)
class Xid:
    """An error of a GPU that its driver reported, see diagnosis/xid.py; `time` is the host's wall clock."""

    time: float
    code: int


@dataclasses.dataclass(frozen=True)
class GpuSample:
    """One GPU. None where the driver does not say; `reserved` is the driver's own share, not in `used`."""

    index: int
    uuid: str
    name: str
    state: str
    utilization_percent: Optional[float] = None
    memory_used_bytes: Optional[int] = None
    memory_reserved_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    power_watts: Optional[float] = None
    power_limit_watts: Optional[float] = None
    temperature_celsius: Optional[float] = None
    xids: Tuple[Xid, ...] = ()
    """The newest that were reported, oldest first."""


@dataclasses.dataclass(frozen=True)
class GpuStatus:
    """The driver as a whole. `time` is when these values were read: an old one is stale, never live."""

    state: str
    message: str
    time: float
    driver: str = ""
    gpus: Tuple[GpuSample, ...] = ()


@dataclasses.dataclass(frozen=True)
class AgentCost:
    """What encamp itself takes on the host: daemon and supervisors together; `cpu_percent` is of one core."""

    cpu_percent: Optional[float]
    rss_bytes: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """Telemetry of one host, once a second. `time` is the host's wall clock."""

    time: float
    monotonic: float
    cpu: CpuSample
    memory: MemorySample
    shm: Optional[SpaceSample]
    disk: Optional[SpaceSample]
    network: NetworkSample
    gpu: GpuStatus
    agent: AgentCost
    pids: Optional[PidsSample] = None
