"""Why an attempt ended, as one sentence: read from what the ranks and torchrun left behind.

torchrun's exit code says next to nothing (it is 1 for every failure), and its summary names as the root
cause whichever rank it looked at first. So: ranks that torchrun itself told to end are consequences; of the
others one that a signal killed comes first, because its peers then fail with broken connections; then the
one whose own record is the earliest.
"""

from __future__ import annotations

import os
import re
import signal

from . import files

TAIL_BYTES = 512 * 1024
"""How much of the end of launcher.log is read: torchrun repeats the traceback of every rank there."""

MAX_DETAIL = 300
"""Characters of an error's message, or of a log line, in a sentence."""

FULL_BYTES = 64 * 1024
"""A disk with less room than that is the likely reason why a rank failed without a word."""

_FAILURE = re.compile(
    r"^  rank      : (?P<rank>\d+) \(local_rank: \d+\)\n"
    r"^  exitcode  : (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)
_TOLD_TO_END = re.compile(r"Sending process (\d+) closing signal")


class Failure:
    """One rank that did not end well. A negative code is a signal; `time` is None when it recorded none."""

    __slots__ = ("code", "pid", "rank", "time")

    def __init__(self, rank: int, code: int, pid: int, time: float | None) -> None:
        self.rank = rank
        self.code = code
        self.pid = pid
        self.time = time


def launcher_tail(attempt_dir: str) -> str:
    """The end of launcher.log; empty when there is none."""
    try:
        with open(os.path.join(attempt_dir, "launcher.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """The last line of a log that says something, made safe to show and bounded; empty when there is none."""
    for line in reversed(text.splitlines()):
        if line.strip(" =-\t"):
            return sentence(line)
    return ""


def sentence(text: str) -> str:
    """The first line of `text` without control characters, bounded."""
    line = text.strip().split("\n")[0]
    shown = "".join(character for character in line if character.isprintable())
    return shown if len(shown) <= MAX_DETAIL else shown[: MAX_DETAIL - 3] + "..."


def exit_codes(log: str) -> dict[int, int]:
    """rank -> exit code as torchrun's summary in `log` has them; a negative one is a signal."""
    return {int(match["rank"]): int(match["code"]) for match in _FAILURE.finditer(log)}


def failures(attempt_dir: str, ranks: range, log: str) -> list[Failure]:
    """Those of `ranks` that failed by themselves, the cause first. `log` is the end of launcher.log."""
    found: dict[int, Failure] = {}
    for match in _FAILURE.finditer(log):
        rank, code, pid = int(match["rank"]), int(match["code"]), int(match["pid"])
        found[rank] = Failure(rank, code, pid, None)
    for rank in ranks:
        values = files.read_json(os.path.join(attempt_dir, f"rank{rank}", "exit.json")) or {}
        own_code, at = values.get("code"), values.get("time")
        if isinstance(own_code, int) and own_code != 0 and isinstance(at, (int, float)):
            known = found.setdefault(rank, Failure(rank, own_code, 0, None))
            known.time = float(at)
    told = {int(pid) for pid in _TOLD_TO_END.findall(log)}
    causes = [failure for failure in found.values() if failure.pid not in told] or list(found.values())
    return sorted(causes, key=_order)


def _order(failure: Failure) -> tuple[bool, float, int]:
    # An abort is often a consequence too: communication libraries abort when a peer is gone.
    killed = failure.code < 0 and -failure.code not in (signal.SIGABRT, signal.SIGTERM)
    return (not killed, float("inf") if failure.time is None else failure.time, failure.rank)


def describe(attempt_dir: str, failure: Failure, out_of_memory: bool) -> str:
    """`rank 1 exited with code 3`, and what is known of why."""
    if failure.code < 0:
        text = f"rank {failure.rank} was killed by {signal_name(-failure.code)}"
        return text + " (out of memory)" if out_of_memory and failure.code == -signal.SIGKILL else text
    text = f"rank {failure.rank} exited with code {failure.code}"
    error = files.read_json(os.path.join(attempt_dir, f"rank{failure.rank}", "error.json")) or {}
    kind, message = error.get("type"), error.get("message")
    if isinstance(kind, str) and isinstance(message, str):
        detail = sentence(message if kind == "SystemExit" else f"{kind}: {message}".rstrip(": "))
        text += f": {detail}" if detail else ""
    elif _disk_is_full(attempt_dir):  # which is also why it could not say so itself
        text += " (no space is left on the disk)"
    return text


def _disk_is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def reason_of_failure(
    attempt_dir: str, ranks: range, code: int | None, launcher: str, out_of_memory: bool = False
) -> str:
    """The sentence for an attempt whose launcher, named `launcher`, ended with `code` and not by our doing.

    `ranks` are the global ranks of this host. `code` None means that nobody saw how it ended;
    `out_of_memory` that the kernel killed something here.
    """
    log = launcher_tail(attempt_dir)
    causes = failures(attempt_dir, ranks, log)
    if code is not None and code < 0:
        killed = f"{launcher} was killed by {signal_name(-code)}"
        return killed + " (out of memory)" if out_of_memory and code == -signal.SIGKILL else killed
    if causes:
        text = describe(attempt_dir, causes[0], out_of_memory)
        if len(causes) > 1:
            text += f" ({len(causes) - 1} more {'rank' if len(causes) == 2 else 'ranks'} failed too)"
        return text
    how = f"{launcher} ended" if code is None else f"{launcher} exited with code {code}"
    if not any(os.path.exists(os.path.join(attempt_dir, f"rank{rank}", "rank.json")) for rank in ranks):
        how += " before any rank started"
    elif code is None:
        how += " while nobody watched"
    detail = last_line(log)
    return f"{how}: {detail}" if detail else how


def oom_kills() -> int | None:
    """How many processes of our control group the kernel has killed for want of memory; None if not told."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
            names = [f"{root}{path}/memory.oom_control", f"{root}/memory.oom_control"]
        else:
            continue
        for name in names:
            try:
                with open(name, encoding="ascii") as file:
                    counts = [text.split() for text in file if text.startswith("oom_kill ")]
            except OSError:
                continue  # a container may see its group's path as the machine does
            if counts:
                return int(counts[0][1])
    return None
