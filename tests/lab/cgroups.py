"""Limits on a host by control groups, version 1 or 2, whichever the machine has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from agent.cgroup import Mount, parse_mounts

from .options import HostOptions

PERIOD = 100_000
"""Microseconds over which a CPU quota counts."""

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def limit(name: str, options: HostOptions, refuse: Callable[[str], NoReturn]) -> list[Path]:
    """Make the groups called `name` that hold a host to its options, and return their folders.

    A host is put into them by writing a process id into each `cgroup.procs`. Calls `refuse` where the machine
    offers no such groups.
    """
    wanted: dict[str, dict[int, tuple[str, str]]] = {}
    if options.cpus:
        quota = round(options.cpus * PERIOD)
        wanted["cpu"] = {1: ("cpu.cfs_quota_us", str(quota)), 2: ("cpu.max", f"{quota} {PERIOD}")}
    if options.pids:
        wanted["pids"] = {1: ("pids.max", str(options.pids)), 2: ("pids.max", str(options.pids))}
    if options.memory:
        size = str(_bytes(options.memory))
        wanted["memory"] = {1: ("memory.limit_in_bytes", size), 2: ("memory.max", size)}
    folders = []
    for controller, settings in wanted.items():
        mount = _mount(controller)
        if mount is None:
            refuse(f"no control groups for {controller} on this machine")
        folder = Path(mount.point) / name
        try:
            if mount.version == 2:
                (Path(mount.point) / "cgroup.subtree_control").write_text(f"+{controller}")
            folder.mkdir(exist_ok=True)
            file, value = settings[mount.version]
            (folder / file).write_text(value)
        except OSError as error:
            refuse(f"control groups for {controller} cannot be made here: {error}")
        folders.append(folder)
    return list(dict.fromkeys(folders))


def mounting() -> list[str]:
    """Shell commands that show a host its control groups, and as the highest ones its own."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    if all(mount.version == 2 for mount in mounts):
        return ["mount -t cgroup2 cgroup2 /sys/fs/cgroup"] if mounts else []
    commands = ["mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup"]
    for mount in mounts:
        known = [name for name in mount.controllers if name in ("cpu", "cpuacct", "memory", "pids", "cpuset")]
        if mount.version == 1 and known:
            names = ",".join(known)
            commands.append(f"mkdir /sys/fs/cgroup/{names}")
            commands.append(f"mount -t cgroup -o {names} cgroup /sys/fs/cgroup/{names}")
    return commands


def groups_of(lab: str) -> list[Path]:
    """The folders of all groups whose names begin so."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    return [folder for mount in mounts for folder in Path(mount.point).glob(f"{lab}*") if folder.is_dir()]


def _mount(controller: str) -> Mount | None:
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    first = [mount for mount in mounts if mount.version == 1 and controller in mount.controllers]
    second = [
        mount
        for mount in mounts
        if mount.version == 2 and controller in (Path(mount.point) / "cgroup.controllers").read_text().split()
    ]
    return next(iter(first + second), None)


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+)([kmg]?)", size.lower())
    if match is None:
        raise ValueError(f"{size!r} is no size: write for example 256m")
    return int(match[1]) * _UNITS[match[2]]
