"""Finds profiles: those shipped with encamp, those in the user's folder, and any file by its path."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ABSENT, Fault, ProfileError

SHIPPED = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile that can be named. `shipped` is false for the user's own."""

    name: str
    path: Path
    shipped: bool


def available(user_folder: Path | None = None) -> list[Entry]:
    """All profiles by name. One in `user_folder` hides a shipped one of the same name."""
    entries = {entry.name: entry for entry in _entries(SHIPPED, shipped=True)}
    if user_folder is not None:
        entries.update((entry.name, entry) for entry in _entries(user_folder, shipped=False))
    return [entries[name] for name in sorted(entries)]


def find(name_or_path: str, user_folder: Path | None = None) -> Path:
    """The file of a profile: of the path given, else in `user_folder`, else shipped.

    What holds a slash or ends in `.toml` is a path, and is returned whether or not a file is there.
    Raises ProfileError for an unknown name.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path).expanduser()
    entries = {entry.name: entry.path for entry in available(user_folder)}
    if name_or_path in entries:
        return entries[name_or_path]
    close = difflib.get_close_matches(name_or_path, entries, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(entries)}."
    allowed = (
        f"no profile of this name; {hint} A file is named by its path, such as ./{name_or_path or 'my'}.toml"
    )
    raise ProfileError([Fault(f"profile {name_or_path}", "", ABSENT, allowed)])


def _entries(folder: Path, *, shipped: bool) -> Iterator[Entry]:
    try:
        paths = list(folder.glob("*.toml"))
    except OSError:
        return  # a folder that cannot be listed offers nothing; a path into it still says why
    for path in paths:
        yield Entry(path.stem, path, shipped)
