"""The folder in which a tree is put together, from files of other trees and from those that have come."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, List

from . import files, trees
from .trees import Entry

FRESH = 0o600
"""The permissions of a file that belongs to no tree yet."""


class Assembly:
    """A tree that nobody else sees yet."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._made = {folder}

    def path(self, entry: Entry) -> str:
        """Where a file goes; the folder for it is made. Raises OSError."""
        path = f"{self._folder}/{entry.path}"
        parent = path.rpartition("/")[0]
        if parent not in self._made:
            os.makedirs(parent, 0o700, exist_ok=True)
            self._made.add(parent)
        return path

    def put(self, source: str, entry: Entry, certain_ns: int = 0) -> bool:
        """Link or copy a file to its place if it is what it should be. Raises OSError when it cannot be.

        Its hash is looked at, unless it was last touched before `certain_ns`, when it had that hash: the
        time of an inode's change is the kernel's, whatever time of modification somebody has given it.
        """
        path = self.path(entry)
        try:
            status = os.lstat(source)
            if status.st_size != entry.size or not stat.S_ISREG(status.st_mode):
                return False
            alike = status.st_mode & 0o777 in (trees.mode(entry), FRESH)
            linked = alike and _link(source, path)
            if not linked:
                content = trees.copy(source, path, trees.mode(entry))
            elif status.st_ctime_ns < certain_ns and int(status.st_mtime) == trees.TIME:
                return True
            else:
                content = _sha256(path)
        except FileNotFoundError:
            return False  # removed a moment ago
        if content != entry.content:
            os.unlink(path)
            return False
        self._finish(path, entry, status if linked else os.lstat(path))
        return True

    def take(self, source: str, users: List[Entry]) -> None:
        """Move a file that was received to its place, or its places. Raises OSError."""
        path = self.path(users[0])
        os.rename(source, path)
        self._finish(path, users[0], None)
        for entry in users[1:]:
            self.put(path, entry)

    def _finish(self, path: str, entry: Entry, status: Any) -> None:
        if status is None or status.st_mode & 0o777 != trees.mode(entry):
            os.chmod(path, trees.mode(entry))
        if status is None or int(status.st_mtime) != trees.TIME:
            os.utime(path, (trees.TIME, trees.TIME))


def _link(source: str, path: str) -> bool:
    try:
        os.link(source, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in files.NO_SPACE:
            raise
        return False  # a file system without links, or too many of this one
    return True


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while True:
            size = os.readv(fd, [_buffer])
            digest.update(_buffer[:size])
            if size < len(_buffer):
                return digest.hexdigest()
    finally:
        os.close(fd)


_buffer = memoryview(bytearray(256 * 1024))
"""Thousands of files pass through it in half the time that new memory for each would take."""
