"""The hashes of a project's files as of the last launch, so that only what has changed is read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from . import paths

RECENT_NS = 2 * 10**9
"""A file changed so shortly before it was read may change again within one tick of the clock: not kept."""

KEPT = 50
"""Projects that are remembered."""

MAX_BYTES = 64 * 1024 * 1024


class HashCache:
    """The hashes of the files of the project in `folder`. Whatever goes wrong, files are read again."""

    def __init__(self, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._path = paths.state_dir() / "hashes" / f"{name}.json"
        self._known = self._read()
        self._now: dict[str, list[object]] = {}

    def sha256(self, path: str, status: os.stat_result) -> str | None:
        """The hash of the file with the relative path `path`, unless it has changed."""
        found = self._known.get(path)
        if not isinstance(found, list) or found[:-1] != _identity(status) or not isinstance(found[-1], str):
            return None
        self._now[path] = found
        return found[-1]

    def put(self, path: str, status: os.stat_result, sha256: str) -> None:
        """Remember a hash; `status` is from before the file was read."""
        if status.st_mtime_ns < time.time_ns() - RECENT_NS:
            self._now[path] = [*_identity(status), sha256]

    def save(self) -> None:
        """Write down what this launch has seen."""
        if self._now == self._known:
            return
        part = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._now, separators=(",", ":")))
            part.replace(self._path)
            others = sorted(self._path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in others[:-KEPT]:
                old.unlink()
        except OSError:
            pass  # the next launch takes longer

    def _read(self) -> dict[str, object]:
        try:
            if self._path.stat().st_size > MAX_BYTES:
                return {}
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _identity(status: os.stat_result) -> list[object]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
