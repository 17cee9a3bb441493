"""Gets the table of a profile: out of a file or a text, and with what the command line puts in its place.

Says nothing about which keys a profile may have.
"""

from __future__ import annotations

import copy
import re
import stat
from pathlib import Path
from typing import Any

import tomli

from .errors import ABSENT, Fault, ProfileError

MAX_BYTES = 256 * 1024
"""Size of the largest file that is read. One over this size is a mistake: a checkpoint, a log."""

Table = dict[str, Any]


def read(path: Path) -> str:
    """The text of the file `path`. Raises ProfileError when it is not a readable text of reasonable size."""
    where = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise ProfileError([Fault(where, "", ABSENT, f"is {kind}; a profile is a TOML file")])
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ProfileError([Fault(where, "", ABSENT, f"cannot be read: {reason}")]) from error
    if len(data) > MAX_BYTES:
        limit = f"over {MAX_BYTES // 1024} KiB"
        raise ProfileError([Fault(where, "", ABSENT, f"{limit}, which is too large for a profile")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        what = f"not UTF-8: byte 0x{data[error.start]:02x} at line {line}, column {column}; save it as UTF-8"
        raise ProfileError([Fault(where, "", ABSENT, what)]) from error


def parse_toml(text: str, where: str) -> Table:
    """The table in `text`. Raises ProfileError with line and column when it is not TOML."""
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        message = str(error).replace("at end of document", f"at the end, line {line}, column {column}")
        raise ProfileError([Fault(where, "", ABSENT, f"not TOML: {message}")]) from error
    except RecursionError as error:
        raise ProfileError([Fault(where, "", ABSENT, "nested too deeply for a profile")]) from error
    except ValueError as error:  # a number or a date that Python cannot hold
        raise ProfileError([Fault(where, "", ABSENT, f"not TOML: {error}")]) from error


def override(table: Table, setting: str) -> tuple[Table, str]:
    """A copy of `table` with `setting` (`key=value`, the key dotted) put in, and the dotted key that was set.

    The value is read as TOML, and as a string when it is not TOML. Everything under `env` is a string.
    Raises ProfileError.
    """
    where = f"--set {setting}"
    name, equals, word = setting.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in path):
        raise ProfileError([Fault(where, "", ABSENT, "must be key=value, for example train.steps=500")])
    value = _value(word.strip(), text_only=path[0] == "env")
    result = copy.deepcopy(table)
    parent: Any = result
    for depth, part in enumerate(path[:-1]):
        parent = parent.setdefault(part, {})
        if not isinstance(parent, dict):
            key = ".".join(path[: depth + 1])
            raise ProfileError(
                [Fault(where, key, parent, f"is not a table, so it has no key {path[depth + 1]}")]
            )
    parent[path[-1]] = value
    return result, ".".join(path)


def _value(word: str, text_only: bool) -> Any:
    quoted = word[:1] in ("'", '"')
    if "\n" not in word and (quoted or not text_only):
        try:
            return tomli.loads(f"value = {word}")["value"]
        except (ValueError, RecursionError):
            pass  # a bare word
    return word
