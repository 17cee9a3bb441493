"""The machine's own telemetry: CPU, memory, space and network, as far as this host may use them.

Where a control group limits us, its limit and usage count instead of the machine's; see `cgroup.py`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Dict, Optional, Tuple

from . import wire
from .cgroup import Cgroups, Throttling
from .process import TICKS_PER_SECOND
from .procfile import ProcFile

SHM = "/dev/shm"

SLOW_SECONDS = 30.0
"""How often the disk is asked and the limits are looked for again."""


@dataclasses.dataclass(frozen=True)
class HostSample:
    """The fields of `wire.Sample` that this module knows."""

    cpu: wire.CpuSample
    memory: wire.MemorySample
    shm: Optional[wire.SpaceSample]
    disk: Optional[wire.SpaceSample]
    network: wire.NetworkSample
    pids: Optional[wire.PidsSample]


class HostSampler:
    """Takes one sample at each call; rates are between two calls, so call it about once a second.

    `home` is the folder whose file system is shown as the disk. Only it and /dev/shm are ever asked for
    their space: a dead network mount would block for ever.
    """

    def __init__(self, home: str, root: str = "/") -> None:
        self._home = home
        self._root = root
        self._stat = ProcFile(os.path.join(root, "proc/stat"), 64 * 1024)
        self._meminfo = ProcFile(os.path.join(root, "proc/meminfo"))
        self._net = ProcFile(os.path.join(root, "proc/net/dev"), 32 * 1024)
        self._cgroups = Cgroups(root)
        self._slow_at = 0.0
        self._disk: Optional[wire.SpaceSample] = None
        self._cpu_before: Optional[Tuple[float, float]] = None
        self._throttling_before: Optional[Throttling] = None
        self._net_before: Dict[bytes, Tuple[int, int]] = {}
        self._net_before_at = 0.0

    def sample(self) -> HostSample:
        """Everything now. Takes well under a millisecond, but for a file system that does not answer."""
        now = time.monotonic()
        if now >= self._slow_at:
            self._slow_at = now + SLOW_SECONDS
            self._look_again()
        pids = self._cgroups.pids.read()
        return HostSample(
            cpu=self._cpu(now),
            memory=self._memory(),
            shm=space(SHM),
            disk=self._disk,
            network=self._network(now),
            pids=None if pids is None else wire.PidsSample(pids.used, pids.limit),
        )

    def close(self) -> None:
        """Close the files that are kept open."""
        for file in (self._stat, self._meminfo, self._net):
            file.close()
        self._cgroups.close()

    def _look_again(self) -> None:
        self._cgroups.close()
        self._cgroups = Cgroups(self._root)
        self._disk = space(self._home)
        self._cpus = os.sched_getaffinity(0)
        self._logical_cores = os.cpu_count() or len(self._cpus)
        quota = self._cgroups.cpu.limit
        self._limit_cores = float(len(self._cpus)) if quota is None else min(quota, float(len(self._cpus)))

    def _cpu(self, now: float) -> wire.CpuSample:
        used = self._cgroups.cpu.seconds()
        reading: Optional[Tuple[float, float]]
        if used is not None:
            reading = (used, now * self._limit_cores)
        else:
            only = self._cpus if len(self._cpus) < self._logical_cores else None
            reading = parse_cpu(self._stat.read(), only)
        load1, load5, load15 = os.getloadavg()
        before, self._cpu_before = self._cpu_before, reading
        return wire.CpuSample(
            logical_cores=self._logical_cores,
            limit_cores=self._limit_cores,
            percent=_share(before, reading),
            load1=load1,
            load5=load5,
            load15=load15,
            throttled_percent=self._throttled(),
        )

    def _throttled(self) -> Optional[float]:
        before, self._throttling_before = self._throttling_before, self._cgroups.cpu.throttling()
        after = self._throttling_before
        if before is None or after is None:
            return None
        return _share((before.throttled, before.periods), (after.throttled, after.periods)) or 0.0

    def _memory(self) -> wire.MemorySample:
        total, available = parse_meminfo(self._meminfo.read())
        group = self._cgroups.memory.read()
        if group is not None and group.limit < total:
            return wire.MemorySample(group.used, group.limit, True)
        return wire.MemorySample(max(0, total - available), total, False)

    def _network(self, now: float) -> wire.NetworkSample:
        counters = parse_net(self._net.read())
        before, self._net_before = self._net_before, counters
        seconds, self._net_before_at = now - self._net_before_at, now
        if not before or seconds <= 0:
            return wire.NetworkSample(None, None)
        # By interface: one that comes or goes, or starts counting anew, is not traffic.
        both = [(before[name], counter) for name, counter in counters.items() if name in before]
        received = sum(max(0, after[0] - earlier[0]) for earlier, after in both)
        transmitted = sum(max(0, after[1] - earlier[1]) for earlier, after in both)
        return wire.NetworkSample(received / seconds, transmitted / seconds)


def space(path: str) -> Optional[wire.SpaceSample]:
    """Space of the file system that holds `path`, as df counts it: what only root may fill does not exist.

    None where there is no such path or it has no size.
    """
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    total = used + status.f_bavail * status.f_frsize
    return wire.SpaceSample(path, used, total) if total else None


def parse_cpu(data: bytes, only: Optional[set[int]] = None) -> Optional[Tuple[float, float]]:
    """Busy and total seconds of the CPUs in the text of /proc/stat; `only` those with these numbers.

    None when it names none of them. Waiting for a disk is idle, and so is what a hypervisor gave to others.
    """
    busy = total = 0
    found = False
    wanted = {b"cpu"} if only is None else {b"cpu%d" % number for number in only}
    for line in data.split(b"\n"):
        if not line.startswith(b"cpu"):
            break  # they come first
        fields = line.split()
        if fields[0] not in wanted or len(fields) < 8 or not all(field.isdigit() for field in fields[1:8]):
            continue
        user, nice, system, idle, waiting, irq, soft_irq = (int(field) for field in fields[1:8])
        stolen = int(fields[8]) if len(fields) > 8 and fields[8].isdigit() else 0
        busy += user + nice + system + irq + soft_irq
        total += user + nice + system + idle + waiting + irq + soft_irq + stolen
        found = True
    return (busy / TICKS_PER_SECOND, total / TICKS_PER_SECOND) if found else None


def parse_meminfo(data: bytes) -> Tuple[int, int]:
    """Total and available bytes in the text of /proc/meminfo; 0 for what it does not say."""
    values = {b"MemTotal": 0, b"MemAvailable": 0}
    for line in data.split(b"\n", 8)[:8]:  # the first three lines, on every kernel since 3.14
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name in values and fields and fields[0].isdigit():
            values[name] = int(fields[0]) * 1024
    return values[b"MemTotal"], values[b"MemAvailable"]


def parse_net(data: bytes) -> Dict[bytes, Tuple[int, int]]:
    """interface -> bytes received and transmitted, from the text of /proc/net/dev, without loopback."""
    counters = {}
    for line in data.split(b"\n"):
        name, separator, rest = line.rpartition(b":")  # an alias has a colon in its name
        fields = rest.split()
        if separator and len(fields) >= 9 and fields[0].isdigit() and fields[8].isdigit():
            interface = name.strip()
            if interface != b"lo":
                counters[interface] = (int(fields[0]), int(fields[8]))
    return counters


def _share(before: Optional[Tuple[float, float]], after: Optional[Tuple[float, float]]) -> Optional[float]:
    """Percent of the second number's growth that the first one's is, within 0 to 100."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return min(100.0, max(0.0, 100.0 * (after[0] - before[0]) / (after[1] - before[1])))
