"""Small files on the host: JSON written whole and renamed into place, JSON lines appended and read with care.

Whoever writes may be killed at any moment and the disk may fill up at any moment, so readers take what is
missing, half-written or not JSON as "not there" and never raise for it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading

MAX_JSON = 4 * 1024 * 1024
"""Bytes beyond which a JSON file is not read: what encamp writes is far smaller."""

MAX_JSON_LINE = 64 * 1024
"""Bytes beyond which a line of a JSON lines file is skipped."""

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk, or a used up quota, answers."""

RESERVE_BYTES = 4096
"""What `reserve` sets aside: a block, in which everything that is written so fits."""


def make_dirs(path: str) -> None:
    """Create the folder `path` and its parents, each with mode 0700. An existing one is left as it is.

    Raises OSError.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent and parent != path:
        make_dirs(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def write_bytes(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by a file that holds `data`: readers see the old or the new content, never a part.

    Raises OSError, after which the old content is still there and nothing is left behind.
    """
    part = f"{path}.{os.getpid()}-{threading.get_ident()}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
        finally:
            os.close(fd)
        os.rename(part, path)
    except OSError:
        os.unlink(part)
        raise


def write_json(path: str, value: object) -> None:
    """Write `value` as JSON to `path`, mode 0600, as `write_bytes` does. Raises OSError."""
    write_bytes(path, _encoded(value))


def reserve(path: str) -> None:
    """Set space aside for `path`, so that `write_json_in_reserve` works on a full disk. Does what it can."""
    with contextlib.suppress(OSError):
        write_bytes(_reserve_of(path), b" " * RESERVE_BYTES)


def drop_reserve(path: str) -> None:
    """Give back what `reserve` set aside for `path`; nothing when it is used or was never there."""
    with contextlib.suppress(OSError):
        os.unlink(_reserve_of(path))


def write_json_in_reserve(path: str, value: object) -> None:
    """Write as `write_json` does, on a full disk into the space that was set aside for it. Raises OSError."""
    try:
        write_json(path, value)
    except OSError as error:
        data = _encoded(value)
        if error.errno not in NO_SPACE or len(data) > RESERVE_BYTES:
            raise
        try:
            fd = os.open(_reserve_of(path), os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            raise error from None
        try:
            os.pwrite(fd, data, 0)  # before the file is cut: its block might not come back
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)
        os.rename(_reserve_of(path), path)
    else:
        drop_reserve(path)


def _reserve_of(path: str) -> str:
    return path + ".reserve"


def _encoded(value: object) -> bytes:
    return json.dumps(value, indent=1).encode("utf-8", "surrogatepass") + b"\n"


def read_json(path: str) -> dict[str, object] | None:
    """The JSON object in `path`, or None when there is no such file or it holds no complete object."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JSON + 1)
    except OSError:
        return None
    if len(data) > MAX_JSON:
        return None
    return _object(data)


def append_json_line(path: str, value: object) -> None:
    """Append one object to a JSON lines file, created with mode 0600. One write: lines never mix.

    A line that an earlier writer left unfinished is closed first, so that it spoils only itself.
    Raises OSError.
    """
    line = json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(fd, line)
    finally:
        os.close(fd)


def read_json_lines(path: str, start: int = 0, limit: int = MAX_JSON) -> tuple[list[dict[str, object]], int]:
    """The complete lines of a JSON lines file from byte `start` on, and the byte at which to go on.

    At most `limit` bytes are read. An unfinished last line is left for the next call; lines that are not
    JSON objects or too long are skipped. A missing file has no lines.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return [], start
    try:
        data = os.pread(fd, limit, start)
    except OSError:
        return [], start
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == limit:
        end = limit  # one line longer than all that may be read: go on behind this piece of it
    records = []
    for line in data[:end].split(b"\n"):
        record = _object(line) if len(line) <= MAX_JSON_LINE else None
        if record is not None:
            records.append(record)
    return records, start + end


def changed_at(path: str) -> float:
    """When a file or folder was last changed, in seconds since the epoch; 0 when it is not there."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _object(data: bytes) -> dict[str, object] | None:
    if not data:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
