"""Two looks at the ranks of an attempt on this host, a moment apart, and what they show together.

Everything is asked from outside or of torch's own server; no rank runs a line of Python for it. The files and
sockets lie where the user's program can write, so what comes from them is bounded and checked.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import files, process, wire
from ..diagnosis import places
from ..diagnosis.evidence import Child, Frame, Gpu, Group, Rank, Thread
from ..ranks import STEPS, STEPS_MAGIC
from . import flight, sockets, stacks, words

WINDOW_SECONDS = 1.0
"""Between the two looks."""

AT_ONCE = 16
"""Ranks that are asked at the same time."""

MAX_CHILDREN = 64
MAX_ASKED_CHILDREN = 4

GIL_SECONDS = 1.5
"""How long another Python thread may wait for its turn before the GIL counts as held."""

MAX_WORDS, MAX_TRACEBACK = 2000, 12000
"""Characters of an error that are kept: the first of its message, the last of its traceback."""


class Known(NamedTuple):
    """What is known of a rank without asking it."""

    sample: wire.RankSample
    age: Optional[float] = None
    """Seconds since its last sign of progress."""
    phase_age: Optional[float] = None
    loss: str = ""
    gil_held: bool = False
    """The GIL was held at an earlier look, and nothing has changed since: it need not be asked again."""


class _Look(NamedTuple):
    """One rank at one moment."""

    at: float
    stat: Optional[process.Stat]
    main_ticks: Optional[int]
    io_before: Optional[int]
    io_bytes: Optional[int]
    """Before and after it was asked: its own answers are no work of its."""
    log_bytes: int
    threads: Tuple[Thread, ...]
    groups: Optional[Tuple[Group, ...]]
    children: Dict[int, process.Stat]
    step_age: Optional[float]
    """Seconds since its optimizer's last step, by its own count."""


def gather(
    attempt_dir: str, host: str, known: Sequence[Known], gpus: Mapping[int, Gpu], cwd: str = ""
) -> Tuple[Tuple[Rank, ...], Tuple[str, ...]]:
    """Look twice at all ranks in `known`: what they show, and the connections of theirs that are stuck.

    `gpus` are the host's, by index; `cwd` is where the ranks were started. Blocks for about
    `WINDOW_SECONDS`, and up to 5 seconds more when ranks do not answer. Call it in a thread.
    """
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        children = _children([entry.sample.pid for entry in known])
        first = list(pool.map(lambda one: _look(attempt_dir, one, children, cwd), known))
        turns = [pool.submit(_gil_free, attempt_dir, *both) for both in zip(known, first)]
        if any(look.stat is not None for look in first):  # of what is over there is nothing to compare
            time.sleep(max(0.0, WINDOW_SECONDS - (time.monotonic() - min(look.at for look in first))))
        children = _children([entry.sample.pid for entry in known])
        second = list(pool.map(lambda one: _look(attempt_dir, one, children, cwd), known))
        parts = pool.map(
            lambda one, before, after, turn: _rank(
                attempt_dir, host, _older(one, after.at - began), before, after, turn.result(), gpus, cwd
            ),
            known,
            first,
            second,
            turns,
        )
        ranks = tuple(parts)
    stuck: List[str] = []
    for rank in ranks:
        if rank.pid is not None and rank.state == "running" and places.in_backward_or_collective(rank):
            stuck += sockets.named(rank.rank, sockets.unacknowledged(rank.pid))
    return ranks, tuple(stuck[:64])


def _look(attempt_dir: str, known: Known, children: Dict[int, Dict[int, process.Stat]], cwd: str) -> _Look:
    sample = known.sample
    folder = os.path.join(attempt_dir, f"rank{sample.rank}")
    at = time.monotonic()
    if sample.pid is None or sample.state != "running":
        return _Look(at, None, None, None, None, _size(folder + ".log"), (), None, {}, None)
    found = process.stat(sample.pid)
    answers = found is not None and found.state not in "TtZX"
    io_before = _io_bytes(sample.pid)
    text = stacks.ask(sample.pid, folder) if found is not None and found.state not in "TtDZX" else None
    return _Look(
        at=at,
        stat=found,
        main_ticks=_ticks(process.stat(sample.pid, sample.pid)),
        io_before=io_before,
        io_bytes=_io_bytes(sample.pid),
        log_bytes=_size(folder + ".log"),
        threads=stacks.parse(text, _main_thread(folder), cwd) if text else (),
        groups=flight.record(folder) if answers else None,
        children=children.get(sample.pid, {}),
        step_age=_step_age(folder),
    )


def _rank(
    attempt_dir: str,
    host: str,
    known: Known,
    first: _Look,
    second: _Look,
    gil_free: Optional[bool],
    gpus: Mapping[int, Gpu],
    cwd: str,
) -> Rank:
    sample = known.sample
    folder = os.path.join(attempt_dir, f"rank{sample.rank}")
    error = files.read_json(os.path.join(folder, "error.json")) or {}
    ended = (files.read_json(os.path.join(folder, "exit.json")) or {}).get("time")
    seconds = max(second.at - first.at, 1e-3)
    rank = Rank(
        rank=sample.rank,
        host=host,
        state=sample.state,
        pid=sample.pid,
        exit_code=sample.exit_code,
        ended=float(ended) if isinstance(ended, (int, float)) and abs(ended) < 1e12 else None,
        error_type=str(error.get("type", ""))[:200],
        error_message=str(error.get("message", ""))[:MAX_WORDS],
        traceback=str(error.get("traceback", ""))[-MAX_TRACEBACK:],
        process_state=second.stat.state if second.stat is not None else "",
        runnable=all(look.stat is not None and look.stat.state == "R" for look in (first, second)),
        wait_channel=process.wait_channel(sample.pid)[:80] if second.stat is not None and sample.pid else "",
        cpu_share=_share(_ticks(first.stat), _ticks(second.stat), seconds),
        main_cpu_share=_share(first.main_ticks, second.main_ticks, seconds),
        io_bytes=_difference(first.io_bytes, second.io_before),
        log_bytes=max(0, second.log_bytes - first.log_bytes),
        rss_bytes=second.stat.rss_bytes if second.stat is not None else sample.rss_bytes,
        step=sample.step,
        # A collective that came or went meanwhile is progress too.
        step_age=0.0 if _moved(first.groups, second.groups) else _least(known.age, second.step_age),
        step_seconds=sample.step_seconds,
        phase=sample.phase or "",
        phase_age=known.phase_age,
        loss=known.loss,
        threads=second.threads,
        earlier=next((thread.frames for thread in first.threads if thread.main), ()),
        groups=second.groups or (),
        recorded=second.groups is not None,
        gpu=gpus.get(sample.gpu) if sample.gpu is not None else None,
        last_words="" if error or not _fell(sample) else words.last_words(folder + ".log"),
    )
    if rank.state != "running" or rank.process_state in ("", "Z", "X"):
        return rank
    stack = places.main_stack(rank)
    ask = places.in_loader(stack) or places.for_children(stack)
    return dataclasses.replace(
        rank,
        gil_free=gil_free,
        children=_workers(folder, first.children, second.children, seconds, ask, cwd),
    )


def _fell(sample: wire.RankSample) -> bool:
    """Whether it is over, and not as it should be."""
    return sample.state == "lost" or (sample.state == "exited" and sample.exit_code != 0)


def _older(known: Known, seconds: float) -> Known:
    """What is known of a rank that shows nothing new `seconds` later."""
    phase_age = None if known.phase_age is None else known.phase_age + seconds
    return known._replace(age=None if known.age is None else known.age + seconds, phase_age=phase_age)


def _least(*ages: Optional[float]) -> Optional[float]:
    return min((age for age in ages if age is not None), default=None)


def _step_age(folder: str) -> Optional[float]:
    """Seconds since the step that a rank counted last, as of now; None when it has counted none."""
    try:
        with open(os.path.join(folder, "steps"), "rb") as file:
            magic, steps, _, at = STEPS.unpack(file.read(STEPS.size))
    except (OSError, struct.error):
        return None
    age: float = time.monotonic() - at
    return age if magic == STEPS_MAGIC and steps and age >= 0 else None


def _gil_free(attempt_dir: str, known: Known, look: _Look) -> Optional[bool]:
    """Whether Python code of another thread of the rank gets a turn; None where nobody can say."""
    if known.gil_held:
        return False
    stack = next((thread.frames for thread in look.threads if thread.main), ())
    if look.stat is None or look.stat.state in "TtDZX" or look.groups is None:
        return None
    if (known.age or 0.0) < 2.0 or places.in_collective(stack) or places.in_backward(stack):
        return None  # it makes progress, or waits: not worth a thread that may wait for long
    folder = os.path.join(attempt_dir, f"rank{known.sample.rank}")
    return flight.ask(folder, "dump_traceback", GIL_SECONDS) is not None


def _workers(
    folder: str,
    first: Dict[int, process.Stat],
    second: Dict[int, process.Stat],
    seconds: float,
    ask: bool,
    cwd: str,
) -> Tuple[Child, ...]:
    found = []
    for number, (pid, stat) in enumerate(sorted(second.items())[:MAX_CHILDREN]):
        before = first.get(pid)
        frames: Tuple[Frame, ...] = ()
        if ask and number < MAX_ASKED_CHILDREN and stat.state not in "TtDZX":
            text = stacks.ask(pid, folder)
            threads = stacks.parse(text, None, cwd) if text else ()
            frames = next((thread.frames for thread in threads if thread.main), ())
        share = _share(_ticks(before), stat.cpu_ticks, seconds)
        found.append(Child(pid, _name(pid), stat.state, share, frames))
    return tuple(found)


def _children(roots: Sequence[Optional[int]]) -> Dict[int, Dict[int, process.Stat]]:
    """Of each of `roots` the processes that it has started: pid -> what they do."""
    wanted = {pid for pid in roots if pid is not None}
    found: Dict[int, Dict[int, process.Stat]] = {pid: {} for pid in wanted}
    for pid in process.pids() if wanted else ():
        stat = process.stat(pid)
        if stat is not None and stat.parent in wanted:
            found[stat.parent][pid] = stat
    return found


def _moved(first: Optional[Tuple[Group, ...]], second: Optional[Tuple[Group, ...]]) -> bool:
    def counts(groups: Optional[Tuple[Group, ...]]) -> Dict[str, Tuple[int, int]]:
        return {group.name: (group.enqueued, group.completed) for group in groups or ()}

    return first is not None and second is not None and counts(first) != counts(second)


def _share(first: Optional[int], second: Optional[int], seconds: float) -> Optional[float]:
    if first is None or second is None:
        return None
    return round(max(0, second - first) / process.TICKS_PER_SECOND / seconds, 3)


def _difference(first: Optional[int], second: Optional[int]) -> Optional[int]:
    return None if first is None or second is None else max(0, second - first)


def _ticks(stat: Optional[process.Stat]) -> Optional[int]:
    return None if stat is None else stat.cpu_ticks


def _main_thread(folder: str) -> Optional[int]:
    value = (files.read_json(os.path.join(folder, "rank.json")) or {}).get("thread")
    return value if isinstance(value, int) and value > 0 else None


def _io_bytes(pid: int) -> Optional[int]:
    """Bytes read and written so far by system calls, and of files: a single call may write for minutes."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            fields = dict(line.split(b": ", 1) for line in file.read(4096).splitlines() if b": " in line)
        return sum(int(fields[name]) for name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes"))
    except (OSError, KeyError, ValueError):
        return None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
