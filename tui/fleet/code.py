"""The archive of the built-in trainer that a host needs to run one of its tasks.

The trainer is found, not imported: it needs torch, and this machine may have none. The archive is the same
for the same sources, so its hash names it and a host that has it is not sent it again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from agent import wire

from .errors import EncampError

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the earliest that a zip archive can hold."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive of Python sources and its name by content."""

    ref: wire.CodeRef
    data: bytes


@functools.cache
def trainer_archive() -> Archive:
    """The `trainer` package as an archive. Raises EncampError when it is not installed beside us."""
    spec = importlib.util.find_spec("trainer")
    if spec is None or not spec.submodule_search_locations:
        raise EncampError("the built-in trainer is missing from this installation", "install encamp again")
    return pack("trainer", Path(spec.submodule_search_locations[0]))


def pack(name: str, folder: Path) -> Archive:
    """All files of `folder`, but for compiled ones, under the top-level name `name`."""
    files = sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for relative, path in files:
            entry = zipfile.ZipInfo(f"{name}/{relative}", EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix everywhere, or the bytes depend on where encamp runs
            archive.writestr(entry, path.read_bytes())
    data = buffer.getvalue()
    return Archive(wire.CodeRef(hashlib.sha256(data).hexdigest(), name), data)
