"""Processes as /proc shows them: identity, state, cost, and the marks by which an attempt's are found.

A process is identified by its pid together with its start time, never by the pid alone: pids come back.
Everything here answers for a process that has meanwhile gone with None or an empty result.
"""

from __future__ import annotations

import os

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

PR_SET_CHILD_SUBREAPER = 36

MAX_ENVIRON = 2 * 1024 * 1024
"""Bytes of /proc/PID/environ that are looked at."""


class Stat:
    """What one reading of /proc/PID/stat says."""

    __slots__ = ("cpu_ticks", "parent", "pid", "rss_bytes", "start_time", "state", "threads")

    def __init__(
        self,
        pid: int,
        state: str,
        parent: int,
        cpu_ticks: int,
        start_time: int,
        rss_bytes: int,
        threads: int = 1,
    ) -> None:
        self.pid = pid
        self.state = state
        """The letter: R running, S sleeping, D in the kernel, T stopped, Z dead and not yet collected."""
        self.parent = parent
        self.cpu_ticks = cpu_ticks
        """User and system time of all its threads, in ticks of 1 / `TICKS_PER_SECOND` seconds."""
        self.threads = threads
        """How many there are, the first one included also when it has ended."""
        self.start_time = start_time
        """Ticks from the boot of the machine to its start."""
        self.rss_bytes = rss_bytes

    @property
    def dead(self) -> bool:
        """Whether it runs no more: what is left of it only waits for its parent to look.

        Its state is that of its first thread. While another one is still on its way out, which may hang in a
        driver, the process has its memory, that on a GPU included.
        """
        return self.state in "ZX" and self.threads <= 1


def stat(pid: int, thread: int | None = None) -> Stat | None:
    """Read /proc/PID/stat, or that of one of its threads alone; None when there is no such process."""
    place = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The second field is the program's name in parentheses and may hold anything, parentheses included.
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 22:
        return None
    return Stat(
        pid,
        fields[0].decode("ascii", "replace"),
        int(fields[1]),
        int(fields[11]) + int(fields[12]),
        int(fields[19]),
        int(fields[21]) * PAGE_BYTES,
        int(fields[17]),
    )


def start_time(pid: int) -> int | None:
    """Ticks from boot to the start of process `pid`, or None when there is no such process."""
    found = stat(pid)
    return found.start_time if found else None


def alive(pid: int, start_time: int) -> bool:
    """Whether the process that started at `start_time` under `pid` still runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found.start_time == start_time and not found.dead


def boot_id() -> str:
    """The kernel's random identity of this boot; empty where /proc does not say."""
    return _read_text("/proc/sys/kernel/random/boot_id")


def boot_time() -> float | None:
    """When the machine was booted, in seconds since the epoch."""
    for line in _read_text("/proc/stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def wait_channel(pid: int) -> str:
    """The kernel function in which a process sleeps; empty where the kernel does not tell."""
    text = _read_text(f"/proc/{pid}/wchan")
    return "" if text == "0" else text


def pids() -> list[int]:
    """All processes that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(roots: set[int]) -> dict[int, int]:
    """pid -> start time of all living children of `roots`, their children, and so on; not `roots` itself."""
    children: dict[int, list[Stat]] = {}
    for pid in pids():
        found = stat(pid)
        if found is not None:
            children.setdefault(found.parent, []).append(found)
    result: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in result and child.pid not in roots:
                waiting.append(child.pid)
                if not child.dead:
                    result[child.pid] = child.start_time
    return result


def marked(variables: dict[str, str]) -> dict[int, int]:
    """pid -> start time of all living processes that were started with all these environment variables.

    A process keeps the environment of its last exec here, and a fork shares it: this finds what has
    detached itself from its parent. Processes of other users cannot be read and are not found.
    """
    wanted = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    result: dict[int, int] = {}
    for pid in pids():
        present = environ(pid)
        if present and all(variable in present for variable in wanted):
            found = stat(pid)
            if found is not None and not found.dead:
                result[pid] = found.start_time
    return result


def environ(pid: int) -> frozenset[bytes]:
    """The `NAME=value` strings a process was started with; empty when they cannot be read."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return frozenset()
    data = b""
    try:
        while len(data) < MAX_ENVIRON:
            piece = os.read(fd, 65536)
            if not piece:
                break
            data += piece
    except OSError:
        pass  # it has just gone, or its memory cannot be read: what was read so far is all there is
    finally:
        os.close(fd)
    return frozenset(data.split(b"\0"))


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("ascii", "replace").strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own (Linux 3.4); harmless where that fails."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass
