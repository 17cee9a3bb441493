"""Control groups, version 1 and 2: what this host may use at most, and what it uses of that.

On a rented container the machine's own numbers mislead: 384 cores and 2 TB are shown where 46 and 180 GB
may be used. Limits hold along the whole path from our group up to the highest one that we see, so each
resource is watched at the group with the tightest limit, and that group's usage is what counts against it.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

from .procfile import ProcFile

HOST_NAMESPACE = "cgroup:[4026531835]"
"""Link of /proc/self/ns/cgroup in the machine's own namespace, a constant of the kernel."""


N = TypeVar("N", int, float)


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo that mounts control groups."""

    root: str
    """The group that is seen at `point`; `/` when it is the highest of our namespace."""
    point: str
    version: int
    controllers: Tuple[str, ...]
    """Version 1 only; version 2 has all that are not used by a version 1 mount."""


class Memory(NamedTuple):
    """Bytes; `used` is without the page cache, which goes when somebody needs the memory."""

    used: int
    limit: int


class Throttling(NamedTuple):
    """How many scheduling periods there were, and in how many the quota ran out."""

    periods: int
    throttled: int


class Pids(NamedTuple):
    """Processes and threads."""

    used: int
    limit: int


def parse_mounts(mountinfo: str) -> List[Mount]:
    """The control group mounts in the text of /proc/PID/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) < 5 or source[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if source[0] == "cgroup2" else 1
        options = tuple(source[2].split(",")) if version == 1 and len(source) > 2 else ()
        mounts.append(Mount(_unescaped(fields[3]), _unescaped(fields[4]), version, options))
    return mounts


def parse_groups(text: str) -> Dict[str, str]:
    """controller -> path of our group, from the text of /proc/PID/cgroup; version 2 is under ``""``."""
    groups = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and number.isdigit() and path.startswith("/"):
            for controller in controllers.split(","):
                groups[controller] = path
    return groups


def parse_table(data: bytes) -> Dict[bytes, int]:
    """The `name value` lines of cpu.stat and memory.stat; lines of another form are left out."""
    table = {}
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) == 2 and fields[1].isdigit():
            table[fields[0]] = int(fields[1])
    return table


def parse_number(data: bytes) -> Optional[int]:
    """The number that a file like memory.max holds, or None for `max`, -1 and nothing at all."""
    text = data.strip()
    return int(text) if text.isdigit() else None


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), path)


class Hierarchy(NamedTuple):
    """Where one controller's files are: our group first, then its parents as far as they can be seen."""

    version: int
    folders: Tuple[str, ...]
    whole_machine: bool
    """Whether the last folder is the machine's own highest group."""


class MemoryGroup:
    """The group with the tightest memory limit."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        second = hierarchy.version == 2
        name = "memory.max" if second else "memory.limit_in_bytes"
        self.limit, folder = _tightest(
            hierarchy, lambda group: parse_number(_read(os.path.join(group, name)))
        )
        self._usage = ProcFile(os.path.join(folder, "memory.current" if second else "memory.usage_in_bytes"))
        self._stat = ProcFile(os.path.join(folder, "memory.stat"))
        # Pages of /dev/shm are on the lists of anonymous memory, so they stay counted as used.
        self._cache = (
            (b"inactive_file", b"active_file", b"slab_reclaimable")
            if second
            else (b"total_inactive_file", b"total_active_file")
        )

    def read(self) -> Optional[Memory]:
        """The limit and what is used of it, or None when there is no limit."""
        if self.limit is None:
            return None
        used = parse_number(self._usage.read())
        if used is None:
            return None
        table = parse_table(self._stat.read())
        cache = sum(table.get(name, 0) for name in self._cache)
        return Memory(max(0, used - cache), self.limit)

    def close(self) -> None:
        """Close the files that are kept open."""
        self._usage.close()
        self._stat.close()


class CpuGroup:
    """The group with the tightest CPU quota, `limit` in cores; without one, the whole container."""

    def __init__(self, cpu: Hierarchy, cpuacct: Hierarchy) -> None:
        self.limit, folder = _tightest(cpu, _quota_2 if cpu.version == 2 else _quota_1)
        self._stat = ProcFile(os.path.join(folder, "cpu.stat"))
        accounts = cpu if cpu.version == 2 else cpuacct
        self._version = accounts.version
        accounted = None
        if self.limit is not None:
            # Version 1 may mount the two controllers apart, but a group has the same place in both.
            level = len(cpu.folders) - cpu.folders.index(folder)
            if level <= len(accounts.folders):
                accounted = accounts.folders[len(accounts.folders) - level]
        elif accounts.folders and not accounts.whole_machine:
            accounted = accounts.folders[-1]
        name = "cpu.stat" if accounts.version == 2 else "cpuacct.usage"
        self._usage = ProcFile(os.path.join(accounted, name)) if accounted is not None else None

    def seconds(self) -> Optional[float]:
        """CPU time used so far by all in the group.

        None where it is not known, or when we see the whole machine: /proc/stat knows that better.
        """
        if self._usage is None:
            return None
        data = self._usage.read()
        if self._version == 1:
            nanoseconds = parse_number(data)
            return None if nanoseconds is None else nanoseconds / 1e9
        microseconds = parse_table(data).get(b"usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def throttling(self) -> Optional[Throttling]:
        """How often the quota ran out so far, or None without a quota."""
        if self.limit is None:
            return None
        table = parse_table(self._stat.read())
        if b"nr_periods" not in table:
            return None
        return Throttling(table[b"nr_periods"], table.get(b"nr_throttled", 0))

    def close(self) -> None:
        """Close the files that are kept open."""
        self._stat.close()
        if self._usage is not None:
            self._usage.close()


class PidsGroup:
    """The group with the tightest limit on processes and threads."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.limit, folder = _tightest(
            hierarchy, lambda group: parse_number(_read(os.path.join(group, "pids.max")))
        )
        self._current = ProcFile(os.path.join(folder, "pids.current"))

    def read(self) -> Optional[Pids]:
        """The limit and the number of processes and threads under it, or None when there is no limit."""
        used = None if self.limit is None else parse_number(self._current.read())
        return None if used is None or self.limit is None else Pids(used, self.limit)

    def close(self) -> None:
        """Close the file that is kept open."""
        self._current.close()


class Cgroups:
    """The limits on this process. `root` is the folder that stands for `/`.

    Limits can be changed from outside: make a new one now and then. Reading is cheap.
    """

    def __init__(self, root: str = "/") -> None:
        mounts = parse_mounts(_text(root, "proc/self/mountinfo"))
        groups = parse_groups(_text(root, "proc/self/cgroup"))
        self.memory = MemoryGroup(hierarchy(root, "memory", mounts, groups))
        self.cpu = CpuGroup(
            hierarchy(root, "cpu", mounts, groups), hierarchy(root, "cpuacct", mounts, groups)
        )
        self.pids = PidsGroup(hierarchy(root, "pids", mounts, groups))

    def close(self) -> None:
        """Close the files that are kept open."""
        self.memory.close()
        self.cpu.close()
        self.pids.close()


def hierarchy(root: str, controller: str, mounts: List[Mount], groups: Dict[str, str]) -> Hierarchy:
    """Where the files of `controller` are; no folders at all where it is not mounted."""
    mount = next((mount for mount in mounts if controller in mount.controllers), None)
    name = controller
    if mount is None:
        mount = next((mount for mount in mounts if mount.version == 2), None)
        name = ""
    path = groups.get(name)
    if mount is None or path is None:
        return Hierarchy(2, (), False)
    try:
        namespace = os.readlink(os.path.join(root, "proc/self/ns/cgroup"))
    except OSError:
        namespace = HOST_NAMESPACE  # a kernel older than these namespaces
    point = os.path.join(root, mount.point.lstrip("/"))
    whole_machine = mount.root == "/" and namespace == HOST_NAMESPACE
    return Hierarchy(mount.version, _folders(point, mount.root, path), whole_machine)


def _folders(point: str, mount_root: str, path: str) -> Tuple[str, ...]:
    """The folders of the group `path` and its parents where the group `mount_root` is mounted at `point`."""
    if mount_root != "/":
        # Without a namespace of its own a container sees its path as the machine does, but not the machine.
        inside = path == mount_root or path.startswith(mount_root + "/")
        path = path[len(mount_root) :] if inside else "/"
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # our group is outside of what the namespace shows
        parts = []
    folders = [os.path.join(point, *parts[:count]) for count in range(len(parts), -1, -1)]
    return tuple(folder for folder in folders if os.path.isdir(folder))


def _tightest(hierarchy: Hierarchy, limit_of: Callable[[str], Optional[N]]) -> Tuple[Optional[N], str]:
    """The smallest limit along the hierarchy and the folder of the group that has it."""
    tightest: Optional[N] = None
    place = ""
    for folder in hierarchy.folders:
        limit = limit_of(folder)
        if limit is not None and (tightest is None or limit < tightest):
            tightest, place = limit, folder
    return tightest, place


def _quota_2(folder: str) -> Optional[float]:
    fields = _read(os.path.join(folder, "cpu.max")).split()
    return _cores(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_1(folder: str) -> Optional[float]:
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us")).strip()
    return _cores(quota, _read(os.path.join(folder, "cpu.cfs_period_us")).strip())


def _cores(quota: bytes, period: bytes) -> Optional[float]:
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def _text(root: str, path: str) -> str:
    return _read(os.path.join(root, path)).decode("utf-8", "surrogateescape")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1024 * 1024)
    except OSError:
        return b""
