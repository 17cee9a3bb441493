"""The copy of a project's files that a run gets: its own, so that what it writes there stays with it."""

from __future__ import annotations

import errno
import os
import shutil
import stat

from . import paths, wire
from .errors import RunError

CHUNK = 1 << 30
"""Bytes that the kernel is asked to copy at once; where the file system can, it shares them instead."""

NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF)
"""What the kernel answers when it cannot copy between these two files by itself."""

_copy_range = getattr(os, "copy_file_range", None)
"""Not in a Python that was built for an old libc."""


def copy(home: str, tree: wire.Tree, target: str) -> None:
    """Copy the tree to `target`, which appears complete or not at all. Raises RunError `no-code`, OSError.

    Links stay links; files stay executable and can be written, whatever they were.
    """
    source = paths.code_dir(home, tree.sha256)
    part = target + ".part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        _copy_folder(source, part)
        os.rename(part, target)
    except FileNotFoundError:
        shutil.rmtree(part, ignore_errors=True)
        raise RunError(
            "no-code", f"files of the code {tree.name!r} are missing on this host", "launch it again"
        ) from None
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _copy_folder(source: str, target: str) -> None:
    os.mkdir(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            path = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_dir():
                _copy_folder(entry.path, path)
            elif entry.is_file():
                mode = stat.S_IMODE(entry.stat().st_mode)
                _copy_file(entry.path, path, 0o700 if mode & 0o100 else 0o600)


def _copy_file(source: str, target: str, mode: int) -> None:
    def create(path: str, flags: int) -> int:
        return os.open(path, flags, mode)

    with open(source, "rb", buffering=0) as old, open(target, "xb", buffering=0, opener=create) as new:
        try:
            while _copy_range is not None and _copy_range(old.fileno(), new.fileno(), CHUNK):
                pass
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise
        shutil.copyfileobj(old, new)  # what is left
