"""Which files make up a project.

In a git work tree: what git tracks, and what it does not but does not ignore either. Elsewhere: everything
but common junk. Either way without what a file `.encampignore` in the project's folder lists, in the format
of .gitignore; `!name` in it brings back what would be taken for junk.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError
from .sanitize import printable

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".encampignore"

MAX_FILES = 100_000
"""Files of a project; a host takes no more."""

GIT_SECONDS = 60.0

ALWAYS_JUNK = re.compile(r"(?:.*/)?(?:__pycache__/.*|\.git(?:/.*)?|[^/]*\.py[co])\Z", re.DOTALL)
"""Of no use anywhere, whatever git thinks of it."""

JUNK = (
    ".hg/", ".svn/", ".venv/", "node_modules/", ".tox/", ".nox/", "*.egg-info/",
    ".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", ".cache/", ".idea/", ".vscode/",
    ".DS_Store", "*.swp", "wandb/", "mlruns/", "lightning_logs/", "checkpoints/",
)  # fmt: skip
"""What nobody means to send, in a folder that git does not know; and virtual environments of any name."""


@dataclass
class Listing:
    """Relative paths of files and links, and what has to be said about others."""

    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    revision: str = ""


def list_files(folder: Path) -> Listing:
    """What the project in `folder` consists of. Raises UsageError."""
    listing = Listing()
    ignored = _ignored(folder) if (folder / IGNORE_FILE).exists() else None
    if _in_git(folder):
        with ThreadPoolExecutor(1) as beside:
            revision = beside.submit(_revision, str(folder))
            found = dict.fromkeys(_git_files(str(folder), "", listing))
            listing.paths = sorted(path for path in found if not ALWAYS_JUNK.match(path))
            if ignored is not None:
                listing.paths = [path for path in listing.paths if not ignored.match_file(path)]
            listing.revision = revision.result()
        if found:
            return listing
        listing.notes.append("git ignores the whole folder, so everything in it is taken")
    listing.paths, listing.revision = sorted(_walk(folder, _ignored(folder, JUNK))), ""
    return listing


def _ignored(folder: Path, junk: Sequence[str] = ()) -> GitIgnoreSpec:
    """What `junk` and the project's own list say. Raises UsageError."""
    from pathspec import GitIgnoreSpec  # most projects do without

    path = folder / IGNORE_FILE
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return GitIgnoreSpec.from_lines([*junk, *lines])
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be used: {printable(str(error))}.", "Correct it.") from error


def _walk(folder: Path, ignored: GitIgnoreSpec) -> Iterator[str]:
    waiting, count = [""], 0
    while waiting:
        inside = waiting.pop()
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    path = inside + entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    shown = path + "/" if is_folder else path
                    if ALWAYS_JUNK.match(shown) or ignored.match_file(shown):
                        continue
                    if is_folder and (folder / path / "pyvenv.cfg").exists():
                        continue
                    if is_folder:
                        waiting.append(path + "/")
                        continue
                    count += 1
                    if count > MAX_FILES:
                        raise too_many(folder)
                    yield path
        except OSError as error:
            raise UsageError(
                f"{printable(str(folder / inside))} cannot be read: {error.strerror}.",
                f"Make it readable, or list it in {IGNORE_FILE}.",
            ) from error


def too_many(folder: Path) -> UsageError:
    """The refusal of a folder with more files than a project may have."""
    return UsageError(
        f"{printable(str(folder))} has over {MAX_FILES} files, too many for a project to send.",
        f"Set code.path to a smaller folder, or list what is not needed in {IGNORE_FILE}.",
    )


# --- git ---------------------------------------------------------------------------------------------------


def _in_git(folder: Path) -> bool:
    """Whether git can say what belongs to the project."""
    return any((parent / ".git").exists() for parent in (folder, *folder.parents))


def _git_files(folder: str, prefix: str, listing: Listing) -> Iterator[str]:
    """The files in the work tree `folder`, with `prefix` in front; those of repositories within, too."""
    for name in _git(folder, "ls-files", "-z", "-co", "--exclude-standard").split(b"\0"):
        path = os.fsdecode(name)
        try:
            mode = os.lstat(f"{folder}/{path}").st_mode
        except OSError:
            continue  # deleted, and not yet committed
        if not path:
            continue
        if not stat.S_ISDIR(mode):
            yield prefix + path
            continue
        path = path.rstrip("/") + "/"  # a submodule, or a repository that is not tracked
        if Path(folder, path, ".git").exists():
            yield from _git_files(f"{folder}/{path}", prefix + path, listing)
        else:
            listing.notes.append(f"{printable(prefix + path)} is a submodule that is not checked out")


def _revision(folder: str) -> str:
    commit, changed = "", False
    for line in _git(folder, "status", "--porcelain=v2", "--branch", "-z", "--", ".").split(b"\0"):
        if line.startswith(b"# branch.oid "):
            commit = line.split()[-1].decode("ascii", "replace")
        elif line and not line.startswith(b"#"):
            changed = True
    name = "no commit" if commit == "(initial)" else commit[:9]
    return f"{name} with changes" if changed and name else name


def _git(folder: str, *words: str) -> bytes:
    """What git says. Raises UsageError."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words],
            env={**inherited, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_SECONDS,
        ).stdout
    except FileNotFoundError:
        raise UsageError(
            f"{printable(folder)} is in a git repository, and git is not installed here.", "Install git."
        ) from None
    except subprocess.CalledProcessError as error:
        said = printable(error.stderr.decode("utf-8", "replace").strip()[:500])
        raise UsageError(f"git does not say what belongs to {folder}: {said}", "Do as it says.") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"git did not say within {GIT_SECONDS:.0f} s what belongs to {folder}.", "Try again."
        ) from error
