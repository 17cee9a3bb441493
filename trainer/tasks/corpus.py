"""Text to learn from without a download: the sources of the Python that runs us, or a folder of files.

The files are joined once, in a fixed order, into one file in the cache; ranks map that file into memory, so
they share its pages and start at once. Nothing here but `corpus` knows torch.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    import torch

OWN_BYTES = 8 * 1024 * 1024
"""How much of Python's own sources is used: less than any version has, so all hosts hold equally much."""

FOLDER_BYTES = 1024 * 1024 * 1024
"""How much of a given folder is used."""

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


def corpus(folder: str) -> torch.Tensor:
    """The text as a tensor of bytes. `folder` empty means Python's own sources. Raises UsageError."""
    import torch

    joined = text(folder)
    if isinstance(joined, bytearray):
        return torch.frombuffer(joined, dtype=torch.uint8)
    return torch.from_file(str(joined), shared=False, size=joined.stat().st_size, dtype=torch.uint8)


def text(folder: str) -> Path | bytearray:
    """The file with the whole text, or, where nothing can be written, its bytes. Raises UsageError."""
    root = Path(folder).expanduser() if folder else Path(sysconfig.get_paths()["stdlib"])
    named = f"--data-dir {folder}" if folder else f"{root}, where this Python's own sources should be"
    if not root.is_dir():
        raise UsageError(f"{named}: no such folder on this host")
    files = list(_bounded(_files(root, own=not folder), FOLDER_BYTES if folder else OWN_BYTES))
    size = sum(count for _, count, _ in files)
    if size == 0:
        raise UsageError(f"{named}: holds no readable text; --data-dir can name another folder")
    described = "\n".join(f"{path} {count} {changed}" for path, count, changed in files)
    name = f"text-{hashlib.sha256(described.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}.bin"
    try:
        return _cached(cache_folder() / name, files, size)
    except OSError:
        return bytearray(b"".join(_contents(files)))  # each rank holds its own copy instead


def cache_folder() -> Path:
    """Where joined texts are kept on this host."""
    home = os.environ.get("ENCAMP_HOME")
    if home:
        return Path(home) / "data"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "encamp"


File = tuple[Path, int, int]
"""Path, how many of its bytes are used, and time of its last change in nanoseconds."""


def _files(root: Path, *, own: bool) -> Iterator[File]:
    for where, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != "." and not (own and name in SKIPPED))
        for name in sorted(names):
            path = Path(where, name)
            if name[0] != "." and (not own or name.endswith(".py")) and path.is_file():
                status = path.stat()
                yield path, status.st_size, status.st_mtime_ns


def _bounded(files: Iterator[File], limit: int) -> Iterator[File]:
    for path, size, changed in files:
        if limit <= 0:
            return
        if size:
            yield path, min(size, limit), changed
            limit -= size


def _contents(files: list[File]) -> Iterator[bytes]:
    for path, count, _ in files:
        with path.open("rb") as file:
            # A file that shrinks while it is read must not move all that follows.
            yield file.read(count).ljust(count, b"\n")


def _cached(path: Path, files: list[File], size: int) -> Path:
    if path.is_file() and path.stat().st_size == size:
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Every rank that comes here first writes the same bytes, and the last to finish wins: no lock is needed.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, delete=False) as file:
        try:
            for content in _contents(files):
                file.write(content)
            file.flush()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
    return path
