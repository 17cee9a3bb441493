"""Asks a process for its Python stacks by the signal that the shim has set up, and reads what it writes.

The signal's handler is in C and needs no GIL. A process that does not catch the signal is not asked: it would
be killed by it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Dict, List, Optional, Tuple

from ..diagnosis import places
from ..diagnosis.evidence import Frame, Thread

SIGNAL = 62
"""A real-time signal that programs do not use for themselves, as they do SIGUSR1 and SIGUSR2: see rank.py."""

FILE = "stacks.txt"

WRITE_SECONDS = 0.5
"""How long a process may take to write its stacks; one that is stopped or in the kernel does not."""

READ_SECONDS = 0.5
"""How long reading a file of the program may take."""

PAUSE_SECONDS = 0.01

MAX_BYTES = 512 * 1024
"""Bytes of one answer that are looked at."""

MAX_FILE = 1024 * 1024
"""A file of stacks that is larger is emptied before the next answer, but for what crashes have written."""

CRASH = re.compile(rb"^Fatal Python error: .{0,16384}", re.M | re.S)
MAX_CRASHES = 4

MAX_THREADS, MAX_FRAMES = 64, 100
MAX_SOURCE = 160

THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.{0,64})\])? \(most recent call first\):")
FRAME = re.compile(r'  File "(.{1,4096})", line (\d{1,9}) in (.{1,500})')


def catches(pid: int) -> bool:
    """Whether a handler for the signal is set in the process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read(65536)
    except OSError:
        return False
    match = re.search(rb"^SigCgt:\s*([0-9a-f]+)", text, re.M)
    return match is not None and bool(int(match[1], 16) >> (SIGNAL - 1) & 1)


def ask(pid: int, rank_dir: str) -> Optional[str]:
    """The stacks of all threads of the process; None when it cannot or does not answer.

    `pid` is a rank or a process that it has forked, which writes into the same file. Blocks for
    `WRITE_SECONDS` at most.
    """
    path = os.path.join(rank_dir, FILE)
    if not catches(pid):
        return None
    try:
        start = os.stat(path).st_size
        if start > MAX_FILE:
            start = _shorten(path)
        os.kill(pid, SIGNAL)
    except OSError:
        return None
    return _written(path, start)


def _shorten(path: str) -> int:
    """Leave of the file only what crashes have written into it; returns its new size. Raises OSError.

    Processes append to it, and go on at its new end.
    """
    with open(path, "r+b") as file:
        crashes = b"".join(CRASH.findall(file.read(2 * MAX_FILE))[-MAX_CRASHES:])
        file.truncate(0)
    with open(path, "ab") as file:
        file.write(crashes)
    return len(crashes)


def _written(path: str, start: int) -> Optional[str]:
    until = time.monotonic() + WRITE_SECONDS
    size = start
    while time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
        try:
            now = os.stat(path).st_size
        except OSError:
            return None
        if now < start:
            start = now  # it was shortened for somebody else who asks
        if now == size > start:
            break  # it has come to rest
        size = now
    if size == start:
        return None
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def parse(text: str, main: Optional[int], cwd: str = "") -> Tuple[Thread, ...]:
    """The threads in what faulthandler wrote. `main` is the identifier of the main one, as in `rank.json`.

    Where that is not known it is the last, which is the order in which they are written. Relative names of
    files are taken to be in `cwd`, and their lines are read from there.
    """
    threads: List[Tuple[str, str, List[Frame]]] = []
    lines: Dict[str, List[str]] = {}
    for line in text.splitlines():
        begin = THREAD.match(line)
        if begin is not None and len(threads) < MAX_THREADS:
            threads.append((begin[1], begin[2] or "", []))
            continue
        frame = FRAME.match(line)
        if frame is not None and threads and len(threads[-1][2]) < MAX_FRAMES:
            threads[-1][2].append(_frame(frame[1], int(frame[2]), frame[3], cwd, lines))
    known = [index for index, thread in enumerate(threads) if main is not None and int(thread[0], 16) == main]
    chosen = known[0] if known else len(threads) - 1
    return tuple(
        Thread(name, index == chosen, tuple(frames)) for index, (_, name, frames) in enumerate(threads)
    )


def _frame(file: str, line: int, function: str, cwd: str, lines: Dict[str, List[str]]) -> Frame:
    own = places.OTHERS.search(file) is None
    source = ""
    if own:
        path = os.path.join(cwd, file)
        if path not in lines:
            lines[path] = _read_lines(path)
        found = lines[path]
        source = found[line - 1].strip()[:MAX_SOURCE] if 0 < line <= len(found) else ""
    return Frame(file, line, function, own, source)


def _read_lines(path: str) -> List[str]:
    """The lines of a file; none where that takes long: the disk that hangs may be that of the program."""
    global _reader
    if _reader is not None and _reader.is_alive():
        return []  # it still hangs
    found: List[str] = []
    reader = threading.Thread(target=lambda: found.extend(_lines(path)), daemon=True)
    reader.start()
    reader.join(READ_SECONDS)
    if reader.is_alive():
        _reader = reader
        return []
    return found


_reader: Optional[threading.Thread] = None
"""The last one that hung."""


def _lines(path: str) -> List[str]:
    try:
        if os.path.isfile(path) and os.stat(path).st_size <= 4 * 1024 * 1024:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().splitlines()
    except OSError:
        pass
    return []
