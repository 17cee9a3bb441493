"""What a rank says about its own progress: `progress.jsonl` tailed live, and its history thinned out.

The file is written by the trainer or by any script, so nothing in it is believed: records become flat
objects of bounded scalars, whatever does not is dropped, and the work of one call is bounded.
"""

from __future__ import annotations

import json
import math
import os
from typing import Dict, Iterable, Iterator, List, Optional, TypeVar

from . import files, wire

MAX_FIELDS = 32
MAX_KEY = 40
MAX_STRING = 200
"""Characters of a text value; longer ones are cut."""

TAIL_BYTES = 32 * 1024
"""Bytes of new lines that one `ProgressTail.read` looks at. Behind a faster writer it skips to the newest.
JSON grows at most sixfold when it is written again in ASCII, so what was read fits one line of the wire."""

TAIL_RECORDS = 64
"""Records that one `ProgressTail.read` returns; more are thinned out."""

WHOLE_BYTES = 4 * 1024 * 1024
"""Size up to which `history` looks at every line; of a larger file it looks at evenly spaced places."""

PLACE_BYTES = 8 * 1024
"""Bytes read at each of these places: the rest of one line and the whole of the next."""

HISTORY_BYTES = 128 * 1024
"""Bytes of JSON that the records of `history` take at most: they are one line of the wire."""

HEAD_BYTES = 16 * 1024
"""Bytes at the beginning of a progress file in which a trainer says how it trains."""

T = TypeVar("T")


def sanitized(record: Dict[str, object]) -> wire.Record:
    """The scalars of `record`, bounded: NaN and infinity as words, cut texts, no nested values."""
    result: wire.Record = {}
    for key, value in record.items():
        if len(result) == MAX_FIELDS:
            break
        if len(key) > MAX_KEY:
            continue
        if isinstance(value, str):
            result[_encodable(key)] = _encodable(value[:MAX_STRING])
        elif value is None or isinstance(value, bool):
            result[_encodable(key)] = value
        elif isinstance(value, (int, float)):
            number = _bounded(value)
            if number is not None:
                result[_encodable(key)] = number
    return result


def _bounded(value: float) -> Optional[wire.Scalar]:
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        try:
            return float(value)
        except OverflowError:
            return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _encodable(text: str) -> str:
    # JSON can spell half a surrogate pair, which no UTF-8 can carry further.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class ProgressTail:
    """Reads what is new in one rank's progress file, call by call.

    `resume` starts behind what is already there, with only `newest` taken from it: for a file whose
    records were reported before.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._seen = 0
        """Size of the file at the last call: while it stays the same there is nothing to do."""
        self.newest: wire.Record = {}
        """The newest record so far; empty when there was none."""
        if resume:
            self._skip_to_end()

    def read(self) -> List[wire.Record]:
        """The records that were added since the last call, oldest first, thinned to TAIL_RECORDS."""
        try:
            status = os.stat(self._path)
        except OSError:
            return []
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._seen = status.st_ino, 0, 0  # another file, or begun anew
        if status.st_size == self._seen:
            return []
        self._seen = status.st_size
        start = max(self._offset, status.st_size - TAIL_BYTES)
        found, self._offset = files.read_json_lines(self._path, start, TAIL_BYTES)
        records = thin((record for record in map(sanitized, found) if record), TAIL_RECORDS)
        if records:
            self.newest = records[-1]
        return records

    def _skip_to_end(self) -> None:
        try:
            status = os.stat(self._path)
        except OSError:
            return
        self._inode = status.st_ino
        start = max(0, status.st_size - TAIL_BYTES)
        found, self._offset = files.read_json_lines(self._path, start, TAIL_BYTES)
        self.newest = next((record for record in map(sanitized, reversed(found)) if record), {})


def training(path: str) -> Optional[wire.Training]:
    """What the records of the phase `init` at the beginning of a progress file say, the last word counts."""
    said: Dict[str, object] = {}
    for record in files.read_json_lines(path, 0, HEAD_BYTES)[0]:
        if record.get("phase") == "init":
            said.update(record)
    return wire.training(said)


def thin(items: Iterable[T], limit: int) -> List[T]:
    """At most `limit` of `items`, evenly spaced, the first and the last among them.

    Holds no more than `limit` items at any time.
    """
    if limit < 1:
        return []
    kept: List[T] = []
    stride = 1
    index = last_kept = -1
    for index, item in enumerate(items):
        if index % stride == 0:
            if len(kept) == limit:
                kept = kept[::2]
                stride *= 2
            if index % stride == 0:
                kept.append(item)
                last_kept = index
    if index > last_kept:
        if len(kept) == limit:
            kept.pop()
        kept.append(item)
    return kept


def history(path: str, limit: int) -> List[wire.Record]:
    """At most `limit` records of a whole progress file, evenly spaced, oldest first, the newest among them.

    Fewer where the file holds lines that are no records. Takes memory and time by `limit`, not by the
    size of the file.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= WHOLE_BYTES:
                # What follows the last newline is a line that is just being written.
                lines = thin(file.read(WHOLE_BYTES).split(b"\n")[:-1], limit)
            else:
                lines = list(_lines_at_places(file.fileno(), size, limit))
    except OSError:
        return []
    records = [record for record in map(_parse, lines) if record]
    tail = ProgressTail(path, resume=True)
    if limit > 0 and tail.newest and records[-1:] != [tail.newest]:
        records[limit - 1 :] = []
        records.append(tail.newest)
    while len(json.dumps(records)) > HISTORY_BYTES:
        records = thin(records, len(records) // 2)
    return records


def _lines_at_places(fd: int, size: int, limit: int) -> Iterator[bytes]:
    previous = -1
    for number in range(limit):
        place = size * number // limit
        block = os.pread(fd, PLACE_BYTES, max(0, place - 1))
        start = block.find(b"\n") + 1 if place else 0
        end = block.find(b"\n", start) + 1
        position = place + start
        if end and (start or not place) and position != previous:
            previous = position
            yield block[start:end]


def _parse(line: bytes) -> wire.Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return sanitized(record) if isinstance(record, dict) else {}
