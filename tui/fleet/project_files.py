"""Which files make up a project.

In a git work tree: what git tracks, and what it does not but does not ignore either. Elsewhere: everything
but common junk. Either way without what a file `.encampignore` in the project's folder lists, in the format
of .gitignore; `!name` in it brings back what would be taken for junk.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from .errors import UsageError
from .sanitize import printable

IGNORE_FILE = ".encampignore"

MAX_FILES = 100_000
"""Files of a project; a host takes no more."""

GIT_SECONDS = 60.0

ALWAYS_JUNK = ("__pycache__/", "*.py[co]", ".git")

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
    ignored = _ignored(folder)
    if _in_git(folder):
        found = list(_git_files(folder, "", listing))
        if found:
            wanted = pathspec.GitIgnoreSpec.from_lines([*ALWAYS_JUNK, *ignored])
            listing.paths = sorted(path for path in dict.fromkeys(found) if not wanted.match_file(path))
            listing.revision = _revision(folder)
            return listing
        listing.notes.append("git ignores the whole folder, so everything in it is taken")
    wanted = pathspec.GitIgnoreSpec.from_lines([*ALWAYS_JUNK, *JUNK, *ignored])
    listing.paths = sorted(_walk(folder, "", wanted))
    return listing


def _ignored(folder: Path) -> list[str]:
    path = folder / IGNORE_FILE
    try:
        lines = path.read_text("utf-8").splitlines()
        pathspec.GitIgnoreSpec.from_lines(lines)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be used: {printable(str(error))}.", "Correct it.") from error
    return lines


def _walk(folder: Path, prefix: str, ignored: pathspec.GitIgnoreSpec, count: int = 0) -> Iterator[str]:
    waiting = [prefix]
    while waiting:
        inside = waiting.pop()
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    path = inside + entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if ignored.match_file(path + "/" if is_folder else path):
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
    """Whether git can say what belongs to the project. Raises UsageError when it should but does not."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return False
    try:
        return _git(folder, "rev-parse", "--is-inside-work-tree").strip() == b"true"
    except FileNotFoundError:
        raise UsageError(
            f"{printable(str(folder))} is in a git repository, and git is not installed here.", "Install git."
        ) from None


def _git_files(folder: Path, prefix: str, listing: Listing) -> Iterator[str]:
    """The files in the work tree `folder`, with `prefix` in front; those of repositories within, too."""
    for name in _git(folder, "ls-files", "-z", "-co", "--exclude-standard").split(b"\0"):
        path = os.fsdecode(name)
        inner = folder / path
        if not path or not os.path.lexists(inner):
            continue  # deleted, and not yet committed
        if inner.is_dir() and not inner.is_symlink():  # a submodule, or a repository that is not tracked
            path = path.rstrip("/") + "/"
            if (inner / ".git").exists():
                yield from _git_files(inner, prefix + path, listing)
            else:
                listing.notes.append(f"{printable(prefix + path)} is a submodule that is not checked out")
        else:
            yield prefix + path


def _revision(folder: Path) -> str:
    commit, changed = "", False
    for line in _git(folder, "status", "--porcelain=v2", "--branch", "-z", "--", ".").split(b"\0"):
        if line.startswith(b"# branch.oid "):
            commit = line.split()[-1].decode("ascii", "replace")
        elif line and not line.startswith(b"#"):
            changed = True
    name = "no commit" if commit == "(initial)" else commit[:9]
    return f"{name} with changes" if changed and name else name


def _git(folder: Path, *words: str) -> bytes:
    """What git says. Raises UsageError, and FileNotFoundError when there is no git."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            env={**inherited, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_SECONDS,
        ).stdout
    except subprocess.CalledProcessError as error:
        said = printable(error.stderr.decode("utf-8", "replace").strip()[:500])
        raise UsageError(f"git does not say what belongs to {folder}: {said}", "Do as it says.") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"git did not say within {GIT_SECONDS:.0f} s what belongs to {folder}.", "Try again."
        ) from error
