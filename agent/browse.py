"""Files in the folders of runs, for viewers that fetch them: never anything outside, only plain files.

Links are followed as long as they lead to something in the same run's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from typing import Any, Dict, List, Optional

from . import paths, wire
from .errors import RunError

PAGE_BYTES = 96 * 1024
"""About how much of a folder's names one answer holds."""

SLICE_BYTES = 1024 * 1024

SHOWN_NAMES = 8
"""How many names are told of the folder in which something was looked for in vain."""


def find(root: str, path: str) -> str:
    """The real path of `path`, relative to the folder `root`. Raises RunError when it is not in there."""
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise RunError("bad-path", f"{path[:200]!r} is not a path within the folder of a run")
    found = os.path.realpath(os.path.join(root, path))
    if not _within(root, found) or not os.path.lexists(found):
        raise RunError("no-file", f"the run has no {path[:200]!r} in its folder", _what_there_is(root, path))
    return found


def _what_there_is(root: str, path: str) -> str:
    """What the nearest folder on the way to `path` has: a few names, those that sort last."""
    there = path.strip("/")
    folder = root
    while there:
        there = os.path.dirname(there)
        folder = os.path.realpath(os.path.join(root, there))
        if _within(root, folder) and os.path.isdir(folder):
            break
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    more = "..., " if len(names) > SHOWN_NAMES else ""
    listed = ", ".join(name[:100] for name in names[-SHOWN_NAMES:])
    listed = listed.encode("utf-8", "replace").decode("utf-8")
    return f"in {there or 'its folder'} there is {more}{listed or 'nothing'}"


def entries(root: str, path: str, start: int) -> Dict[str, Any]:
    """The entries of a folder by name from number `start` on; a file is the only entry of itself, unnamed.

    `next` is where to go on. Raises RunError, OSError.
    """
    found = find(root, path)
    if not os.path.isdir(found):
        return {"folder": False, "entries": [_entry(root, found, "")], "next": None}
    names = sorted(os.listdir(found))
    page: List[Dict[str, Any]] = []
    left = PAGE_BYTES
    end: Optional[int] = None
    for number in range(max(0, start), len(names)):
        if left < 0:
            end = number
            break
        left -= 64 + 6 * len(names[number])
        page.append(_entry(root, os.path.join(found, names[number]), names[number]))
    return {"folder": True, "entries": page, "next": end}


def read(root: str, path: str, offset: int, length: int) -> bytes:
    """Up to `length` bytes at `offset`. Raises RunError, OSError."""
    fd = _open(root, path)
    try:
        return os.pread(fd, max(0, length), max(0, offset))
    finally:
        os.close(fd)


def sha256(root: str, path: str, length: int) -> Dict[str, Any]:
    """The hash of the first `length` bytes, and of how many there were. Raises RunError, OSError."""
    digest = hashlib.sha256()
    done = 0
    fd = _open(root, path)
    try:
        while done < length:
            data = os.pread(fd, min(SLICE_BYTES, length - done), done)
            if not data:
                break
            digest.update(data)
            done += len(data)
    finally:
        os.close(fd)
    return {"sha256": digest.hexdigest(), "length": done}


def send(arguments: List[str]) -> int:
    """`send NONCE HOME`: pieces of files on stdout as asked for on stdin, past the daemon.

    A request is a line of JSON: [run, path, offset, length]. Its answer is a line with the length of what
    follows, or with -1 and why. Returns at the end of stdin.
    """
    nonce, home = arguments
    out = sys.stdout.buffer
    out.write(nonce.encode() + b"\n")
    out.flush()
    for line in sys.stdin.buffer:
        try:
            run, path, offset, length = json.loads(line)
            if not wire.RUN_ID.match(run):
                raise RunError("no-run", "this is not the name of a run")
            data = read(paths.run_dir(home, run), path, offset, min(length, SLICE_BYTES))
            out.write(b"%d\n" % len(data))
            out.write(data)
        except (RunError, OSError) as error:
            out.write(b"-1 " + ascii(str(error)).encode() + b"\n")
        out.flush()
    return 0


def _within(root: str, path: str) -> bool:
    root = os.path.realpath(root)
    return path == root or path.startswith(root + os.sep)


def _entry(root: str, path: str, name: str) -> Dict[str, Any]:
    kind, size = "gone", 0
    try:
        status = os.lstat(path)
        link = stat.S_ISLNK(status.st_mode)
        if link and _within(root, os.path.realpath(path)):
            status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            kind, size = "file", status.st_size
        elif link:
            kind = "link"
        else:
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "other"
    except OSError:
        pass
    return {"name": name, "kind": kind, "size": size}


def _open(root: str, path: str) -> int:
    # Not blocking: what was a file a moment ago may be a pipe by now.
    fd = os.open(find(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RunError("no-file", f"{path[:200]!r} is not a plain file")
    return fd
