"""The line of a rank's log that says why it ended, where it could not write that down itself.

A library in C++ that gives up ends the process at once: gloo and NCCL when a peer is gone, CUDA, the
allocator. What it says goes to the log and nowhere else.
"""

from __future__ import annotations

import os
import re

TAIL_BYTES = 128 * 1024
"""How much of the end of a log is looked at: the stacks that follow the line are long."""

MAX_LINE = 400

TELLING = re.compile(
    r"terminate called|what\(\):|Watchdog caught|NCCL (WARN|error)|ncclRemoteError|CUDA error"
    r"|Connection (closed|reset|refused)|Broken pipe|Fatal Python error|Segmentation fault|Bus error"
    r"|free\(\): invalid|malloc\(\)|double free|corrupted|stack smashing|Assertion .{0,80} failed"
    r"|std::bad_alloc|Cannot allocate memory|out of memory",
    re.I,
)

THROWN = "terminate called after throwing an instance of "
WHAT = "what():"


def last_words(log: str) -> str:
    """The first line at the end of the log that tells; empty where none does."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return in_text(text)


def in_text(text: str) -> str:
    """The same in the text of a log. Of an exception of C++ its kind and its words are one line."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not TELLING.search(line):
            continue
        found = line.strip()
        after = next((each.strip() for each in lines[number + 1 : number + 4] if WHAT in each), "")
        if found.startswith(THROWN):
            kind = found[len(THROWN) :].strip("'\"")
            said = after.partition(WHAT)[2].strip()
            found = f"{kind}: {said}" if said not in ("", kind) else kind
        found = "".join(c if c.isprintable() else " " for c in found.replace(WHAT, "", 1))
        return found.strip()[:MAX_LINE]
    return ""
