"""What an agent tells of its host when it is asked for a check, in the shape in which it is believed.

All of it comes from the host and passes `wire.from_json`, so a field has its type and a bounded size. What
is None or empty is not known there.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from agent import wire


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """A Python of the host; `torch` is None where it cannot be imported, `error` says why it is of no use.

    `packages` are the versions of what it has of torch, DeepSpeed, Horovod and TensorFlow.
    """

    path: str
    version: str
    torch: Optional[str]  # noqa: UP045 (read at run time by wire.from_json, as all of these)
    cuda: Optional[str]  # noqa: UP045
    error: str = ""
    packages: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. The pid is the machine's; without `run` and `name` it is not seen here."""

    gpu: int
    pid: int
    memory_bytes: Optional[int] = None  # noqa: UP045
    run: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True)
class GpuLink:
    """What joins GPUs `a` and `b`: `path` over PCIe, the number of NVLinks, whether they read each other."""

    a: int
    b: int
    path: str
    nvlinks: int
    p2p: Optional[bool] = None  # noqa: UP045


@dataclasses.dataclass(frozen=True)
class Gpus:
    """The driver and its GPUs; `cuda` is the newest that the driver runs, as in 12.8."""

    state: str
    message: str
    driver: str
    gpus: tuple[wire.GpuSample, ...]
    cuda: Optional[str] = None  # noqa: UP045
    processes: tuple[GpuProcess, ...] = ()
    links: tuple[GpuLink, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cpu:
    """Cores: the machine's, those that `nproc` counts, the quota, and what may be used in the end."""

    logical_cores: int
    affinity: int
    quota: Optional[float]  # noqa: UP045
    usable: float


@dataclasses.dataclass(frozen=True)
class Memory(wire.MemorySample):
    """The limit on us, and the machine's memory."""

    machine_bytes: int


@dataclasses.dataclass(frozen=True)
class Home:
    """ENCAMP_HOME: `error` says why it cannot be written to."""

    path: str
    error: str
    executable: bool
    free_inodes: Optional[int]  # noqa: UP045
    file_system: str
    network: bool


@dataclasses.dataclass(frozen=True)
class Provider:
    """Who rents the host out, a guess, and what it rests on."""

    name: str
    why: str


@dataclasses.dataclass(frozen=True)
class Ptrace:
    """Yama's scope (None without Yama), and whether we may trace whom we like."""

    scope: Optional[int]  # noqa: UP045
    capability: bool


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine, or the container that it shows us, and the limits on us."""

    hostname: str
    kernel: str
    architecture: str
    uid: int
    container: str
    provider: Provider
    provisioning: str
    """A file that says that the image is still being set up; empty when there is none."""
    cpu: Cpu
    memory: Memory
    shm: Optional[wire.SpaceSample]  # noqa: UP045
    disk: Optional[wire.SpaceSample]  # noqa: UP045
    pids: Optional[wire.PidsSample]  # noqa: UP045
    home: Home
    ulimits: dict[str, tuple[int, ...]]
    """Soft and hard limits by name; -1 is none."""
    core_pattern: str
    ptrace: Ptrace
    infiniband: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """All of it. `host` and `interpreters` are None when they were not known in time, or not asked for."""

    time: float
    gpu: Gpus
    host: Optional[Machine] = None  # noqa: UP045
    interpreters: Optional[tuple[Interpreter, ...]] = None  # noqa: UP045


def read(reply: dict[str, Any]) -> Facts:
    """The agent's answer to `check`. Raises WireError."""
    return wire.from_json(Facts, reply, "check")


@dataclasses.dataclass(frozen=True)
class Clock:
    """The host's clock minus ours, in seconds, as exact as half the round trip."""

    offset: float
    round_trip: float
