"""A project as it is sent to hosts: its files, their hashes, and the hash of the list of them.

Nothing is sent here, and nothing but the cache of hashes is written. Everything blocks on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent import wire

from . import paths
from .errors import UsageError
from .hash_cache import HashCache
from .project_files import IGNORE_FILE, MAX_FILES, list_files, too_many
from .sanitize import printable

if TYPE_CHECKING:
    from profiles.schema import Profile

MB = 10**6

BIGGEST = 5
"""Files and folders that are named when a project is too large."""

READ_BYTES = 1024 * 1024

ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
"""Characters that no name may have."""


class Entry(NamedTuple):
    """One file. `kind` is `file`, `program` (executable) or `link`; then `content` is where it leads.

    Of the others it is the SHA-256. `size` is in bytes, and 0 for links.
    """

    path: str
    kind: str
    size: int
    content: str


@dataclass(frozen=True)
class Project:
    """The files of one moment. `notes` say what is not among them although it lies there."""

    folder: Path
    name: str
    entries: tuple[Entry, ...]
    revision: str = ""
    """The git commit, shortened, and whether there are changes; empty without git."""
    notes: tuple[str, ...] = ()

    @cached_property
    def manifest(self) -> bytes:
        """The list of files as a host gets it: the same files, the same bytes."""
        return json.dumps(self.entries, separators=(",", ":")).encode("ascii")

    @cached_property
    def tree(self) -> wire.Tree:
        """What a launch says of it."""
        return wire.Tree(
            sha256=hashlib.sha256(self.manifest).hexdigest(),
            name=self.name,
            files=len(self.entries),
            bytes=sum(entry.size for entry in self.entries),
            revision=self.revision,
        )


class ProjectTooLarge(UsageError):
    """The project has more than `max_mb` megabytes; `biggest` are (file or folder, bytes).

    When the user agrees all the same, `collect` is called without a limit.
    """

    def __init__(self, folder: Path, size: int, max_mb: int, biggest: list[tuple[str, int]]) -> None:
        named = ", ".join(f"{printable(path)} {bytes_ / MB:,.1f} MB" for path, bytes_ in biggest)
        shown = printable(str(folder))
        super().__init__(
            f"The project {shown} has {size / MB:,.1f} MB, over code.max_mb = {max_mb}: {named}.",
            f"List what is not needed in {IGNORE_FILE}, or allow it: --set code.max_mb={-(-size // MB)}",
        )
        self.size = size
        self.max_mb = max_mb
        self.biggest = biggest


def folder_of(profile: Profile) -> Path | None:
    """The folder that `profile` has sent, or None. Raises UsageError when it is none.

    A relative path counts from the profile's folder, and from the current one for a profile that is known by
    its name: a shipped one, or the user's in encamp's own folder.
    """
    from profiles import library

    if profile.code is None:
        return None
    file = Path(profile.file).absolute()
    named = file.parent in (library.SHIPPED.absolute(), (paths.config_dir() / "profiles").absolute())
    folder = (Path.cwd() if named else file.parent) / Path(profile.code.path).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"{profile.file}: code.path: there is no folder {printable(str(folder))}.",
            "Set code.path to the folder of your project.",
        )
    return folder.resolve()


def collect(folder: Path, max_mb: int | None = None) -> Project:
    """Look at all files of the project in `folder`, reading only those that have changed since the last time.

    Raises ProjectTooLarge when they have more than `max_mb` megabytes, before any is read; UsageError for
    what cannot be sent.
    """
    listing = list_files(folder)
    notes = listing.notes
    found: list[tuple[str, os.stat_result]] = []
    for path in _outside_links(listing.paths):
        try:
            status = os.lstat(f"{folder}/{path}")
        except FileNotFoundError:
            continue  # just removed
        except OSError as error:
            raise _unreadable(path, error) from error
        found.append((path, status))
    _check_names(path for path, _ in found)
    if len(found) > MAX_FILES:
        raise too_many(folder)
    sizes = {path: status.st_size for path, status in found if stat.S_ISREG(status.st_mode)}
    if max_mb is not None and sum(sizes.values()) > max_mb * MB:
        raise ProjectTooLarge(folder, sum(sizes.values()), max_mb, biggest(sizes))
    cache = HashCache(folder)
    entries = []
    for path, status in found:
        entry = _entry(folder, path, status, cache)
        if isinstance(entry, Entry):
            entries.append(entry)
        else:
            notes.append(entry)
    cache.save()
    if not entries:
        raise UsageError(
            f"There is nothing to send in {printable(str(folder))}.", f"Look at code.path and {IGNORE_FILE}."
        )
    name = printable(folder.name)[:80] or "project"
    return Project(folder, name, tuple(entries), listing.revision, tuple(notes))


def biggest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """What takes most: folders, or files where one of them makes most of its folder, largest first."""
    totals: Counter[str] = Counter()
    for path, size in sizes.items():
        totals[path] += size
        for parent in _parents(path):
            totals[parent + "/"] += size
    found: list[tuple[str, int]] = []
    for path, size in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        outer = [place for place in found if path.startswith(place[0]) and place[0].endswith("/")]
        if outer and size < 0.8 * outer[-1][1]:
            continue  # told with its folder
        found = [place for place in found if place not in outer]
        found.append((path, size))
    return sorted(found, key=lambda item: (-item[1], item[0]))[:BIGGEST]


def _entry(folder: Path, path: str, status: os.stat_result, cache: HashCache) -> Entry | str:
    """The entry of a file, or why it has none."""
    if stat.S_ISLNK(status.st_mode):
        target = str((folder / path).readlink())
        if not leads_inside(path, target):
            return f"{printable(path)} is left out: it leads to {printable(target)}, outside the project"
        return Entry(path, "link", 0, target)
    if not stat.S_ISREG(status.st_mode):
        return f"{printable(path)} is left out: it is no plain file"
    kind = "program" if status.st_mode & 0o100 else "file"
    known = cache.sha256(path, status)
    if known is None:
        try:
            known = _sha256(f"{folder}/{path}")
        except OSError as error:
            raise _unreadable(path, error) from error
        cache.put(path, status, known)
    return Entry(path, kind, status.st_size, known)


def leads_inside(path: str, target: str) -> bool:
    """Whether a link at `path` stays in the project, however the links on its way lead.

    `..` may only come first: behind the name of another link it leads who knows where.
    """
    parts = target.split("/")
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[ups:]
    return ups <= path.count("/") and (rest in ([], ["."]) or not any(map(_odd, rest)))


def _outside_links(paths: Sequence[str]) -> Sequence[str]:
    """`paths` without those in a folder that is itself listed: git still has it, where a link is by now."""
    folders = {path.rpartition("/")[0] for path in paths}
    links = folders.union(*map(_parents, folders)).intersection(paths)
    if not links:
        return paths
    return [path for path in paths if links.isdisjoint(_parents(path))]


def _check_names(names: Iterable[str]) -> None:
    odd = [
        name
        for name in names
        if not (name.isascii() and len(name) < 256 and not ODD.search(name))  # most are plain
        and (len(name) > 1024 or any(map(_odd, name.split("/"))))
    ]
    if odd:
        shown = ", ".join(ascii(name) for name in odd[:BIGGEST]) + (", ..." if len(odd) > BIGGEST else "")
        raise UsageError(
            f"These files have names that a host is not sent: {shown}.",
            f"Names are UTF-8 without control characters and backslashes: rename them, or list them in "
            f"{IGNORE_FILE}.",
        )


def _parents(path: str) -> Iterator[str]:
    return (path[:end] for end, char in enumerate(path) if char == "/")


def _odd(part: str) -> bool:
    """Whether a part of a path is none that a host takes."""
    if not part.isascii():
        try:
            size = len(part.encode("utf-8"))
        except UnicodeEncodeError:
            return True
    else:
        size = len(part)
    return part in ("", ".", "..") or size > 255 or ODD.search(part) is not None


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object for each of thousands takes time
    try:
        while data := os.read(descriptor, READ_BYTES):
            digest.update(data)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"{printable(path)} cannot be read: {error.strerror}.",
        f"Make it readable, or list it in {IGNORE_FILE}.",
    )
