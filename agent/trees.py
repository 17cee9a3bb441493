"""Projects by content: `code/<sha256>/` holds the files, `code/<sha256>.manifest` says which they are.

A manifest is JSON, [[path, kind, size, sha256], ...]: kind is `file`, `program` (executable) or `link`, which
has where it leads in the place of the hash. Its own SHA-256 names the tree. A tree is complete as soon as it
is there, and never changed: runs work on copies. Every file has the same old time, which tells one that was
written to all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from typing import Any, List, NamedTuple, Optional

from . import blobs, files
from .errors import RunError

MAX_MANIFEST = 32 * 1024 * 1024
"""Bytes of a manifest."""
MAX_FILES = 100_000
"""Entries of one."""

TIME = 1_000_000_000
"""Modification time of every file of a tree, in seconds since the epoch."""

KEEP = 3
"""So many trees of one project stay, the last used ones."""
KEEP_SECONDS = 3600.0
"""A tree that was used so recently stays in any case: its launch may still be building an environment."""
LEFTOVER_SECONDS = 24 * 3600.0
"""What something that broke off has left is removed after so long."""

READ_BYTES = 1024 * 1024

PLAIN = re.compile(r"(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*\Z", re.ASCII)
"""What most paths are like; of these nothing more has to be looked at."""


class Entry(NamedTuple):
    """One file of a tree; `content` is its hash, or where a link leads."""

    path: str
    kind: str
    size: int
    content: str


def tree_dir(root: str, sha256: str) -> str:
    """Where a tree lies under the folder `root` of all. Raises RunError when that is no hash."""
    if not isinstance(sha256, str) or not blobs.HASH.match(sha256):
        raise RunError("bad-hash", "a SHA-256 has 64 hexadecimal digits")
    return os.path.join(root, sha256)


def parse(data: bytes) -> List[Entry]:
    """The entries of a manifest. Raises RunError for any that would lead outside, and for what is none."""
    try:
        rows = json.loads(data)
        entries = [Entry(*row) for row in rows]
        if not 0 < len(entries) <= MAX_FILES:
            raise RunError("bad-manifest", f"{len(entries)} files; 1 to {MAX_FILES} are possible")
        for entry in entries:
            _check(entry)
    except (ValueError, TypeError, AttributeError, RecursionError, blobs.BlobError) as error:
        raise RunError("bad-manifest", f"what should come is not clear: {str(error)[:300]}") from error
    names = {entry.path for entry in entries}
    folders = {entry.path.rpartition("/")[0] for entry in entries}
    folders.update(*map(_parents, folders))
    if len(names) != len(entries) or not names.isdisjoint(folders):
        raise RunError("bad-manifest", "two files have one name")
    return entries


def present(root: str, sha256: str) -> bool:
    """Whether a tree is here, and as it was when it came; if so, it counts as used now. Raises RunError."""
    folder = tree_dir(root, sha256)
    entries = read_manifest(root, sha256)
    if entries is None or not all(untouched(folder, entry) for entry in entries):
        return False
    with contextlib.suppress(OSError):
        os.utime(folder + ".json")
    return True


def read_manifest(root: str, sha256: str) -> Optional[List[Entry]]:
    """The entries of a tree that came, or None. Raises RunError when that is no hash."""
    try:
        with open(tree_dir(root, sha256) + ".manifest", "rb") as file:
            data = file.read(MAX_MANIFEST + 1)
    except OSError:
        return None
    # What has the right hash has been looked at when it came.
    return [Entry(*row) for row in json.loads(data)] if hashlib.sha256(data).hexdigest() == sha256 else None


def complete_ns(folder: str) -> int:
    """When a tree was complete, in nanoseconds since the epoch; 0 if it is not."""
    try:
        return os.stat(folder + ".manifest").st_mtime_ns
    except OSError:
        return 0


def untouched(folder: str, entry: Entry) -> bool:
    """Whether a file of a tree looks as it did when it came."""
    path = f"{folder}/{entry.path}"
    try:
        if entry.kind == "link":
            return os.readlink(path) == entry.content
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, int(status.st_mtime)) == (entry.size, TIME)


def mode(entry: Entry) -> int:
    """The permissions of a file in a tree."""
    return 0o555 if entry.kind == "program" else 0o444


def copy(source: str, target: str, permissions: int) -> str:
    """Copy a plain file and return its SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    with open(source, "rb", buffering=0) as old, open(target, "xb", buffering=0) as new:
        while True:
            data = old.read(READ_BYTES)
            if not data:
                break
            digest.update(data)
            write(new.fileno(), data)
        os.fchmod(new.fileno(), permissions)
    return digest.hexdigest()


def write(fd: int, data: Any) -> None:
    """Write all of `data`. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def newest(root: str) -> List[str]:
    """The folders of all trees, the last used first."""
    known = [os.path.join(root, name) for name in _names(root) if name.endswith(".json")]
    return [path[:-5] for path in sorted(known, key=files.changed_at, reverse=True)]


def sweep(root: str) -> None:
    """Remove the trees that are neither of the last of their project nor just used, and old leftovers."""
    now = time.time()
    seen: List[object] = []
    for folder in newest(root):
        seen.append((files.read_json(folder + ".json") or {}).get("name"))
        if seen.count(seen[-1]) > KEEP and files.changed_at(folder + ".json") < now - KEEP_SECONDS:
            discard(folder)
    for name in _names(root):
        path = os.path.join(root, name)
        if name.endswith((".building", ".old")) and files.changed_at(path) < now - LEFTOVER_SECONDS:
            remove(path)


def discard(folder: str) -> None:
    """Remove a tree, first from view. Does what it can."""
    old = f"{folder}.{os.getpid()}.old"
    with contextlib.suppress(OSError):
        os.rename(folder, old)
    for ending in (".manifest", ".json"):
        _unlink(folder + ending)
    remove(old)


def remove(path: str) -> None:
    """Remove a folder and all that is in it, if it is there. Does what it can."""
    with contextlib.suppress(OSError):
        with os.scandir(path) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    remove(item.path)
                else:
                    _unlink(item.path)
        os.rmdir(path)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _check(entry: Entry) -> None:
    """Raises ValueError, TypeError, AttributeError, BlobError when an entry is not as it must be."""
    if not PLAIN.match(entry.path) and blobs.safe_name(entry.path) != entry.path:
        raise ValueError(f"{entry.path[:200]!r} is not a plain relative path")
    if type(entry.size) is not int or entry.size < 0:
        raise ValueError(f"{entry.path[:200]!r} has no size")
    if entry.kind == "link":
        # `..` only in front: behind the name of another link it would lead who knows where.
        parts = entry.content.split("/")
        ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
        if ups > entry.path.count("/"):
            raise ValueError(f"{entry.path[:200]!r} leads outside")
        if parts[ups:] and parts[ups:] != ["."]:
            blobs.safe_name("/".join(parts[ups:]))
    elif entry.kind not in ("file", "program") or not blobs.HASH.match(entry.content):
        raise ValueError(f"{entry.path[:200]!r} is of no known kind")


def _parents(path: str) -> List[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
