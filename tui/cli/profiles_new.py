"""`encamp profiles new`: a profile and a job file to begin with. Both run as they are."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.starter import EXAMPLES

from . import output, parser

if TYPE_CHECKING:
    from .parser import Commands


def register(family: Commands) -> None:
    """Add the command."""
    new_parser = parser.add(
        family,
        "new",
        new,
        summary="write a profile and a job file to begin with",
        details="The profile goes to your own, the job file into the current folder. Both have comments, and "
        "run as they are. What is there already stays as it is.",
        examples=[
            "encamp profiles new mine",
            "encamp profiles new mine --example gpt",
            "encamp profiles new mine --job ~/work/job.py      a file that is there is taken as it is",
        ],
    )
    new_parser.add_argument("name", metavar="NAME", help="what the profile is called")
    new_parser.add_argument(
        "--job",
        metavar="FILE",
        help="the job file: where to write it, or one that is there; default: NAME.py",
    )
    new_parser.add_argument(
        "--example",
        choices=tuple(EXAMPLES),
        default=next(iter(EXAMPLES)),
        help="what to begin with (regression)",
    )


def new(args: argparse.Namespace) -> int:
    """Write both files, and say what to do next."""
    from profiles import starter

    from ..fleet.errors import EncampError, UsageError
    from .profiles import user_folder

    _check_name(args.name)
    profile = user_folder() / f"{args.name}.toml"
    job = Path(args.job or f"{args.name}.py").expanduser().absolute()
    if job.suffix != ".py" or job.is_dir():
        raise UsageError(
            f"--job {args.job}: a job file's name ends in .py.", "Name a file, such as ./job.py."
        )
    if not job.parent.is_dir():
        raise UsageError(
            f"--job {args.job}: there is no folder {job.parent}.", "Make it first, or name another."
        )
    found = job.exists()
    if found and args.job is None:
        raise UsageError(
            f"There is {job.name} already in this folder; nothing was written.",
            f"To use it as it is: encamp profiles new {args.name} --job {job.name}",
        )
    try:
        if not found:
            _write(job, starter.job_text(args.example))
        try:
            profile.parent.mkdir(parents=True, exist_ok=True)
            _write(profile, starter.profile_text(args.example, args.name, job))
        except (OSError, UnicodeError):
            if not found:
                job.unlink()
            raise
    except FileExistsError as error:
        raise UsageError(f"There is {error.filename} already.", "Choose another name.") from error
    except (OSError, UnicodeError) as error:
        raise EncampError(f"The files could not be written: {error}.") from error
    launch = f"encamp launch {args.name} --on HOST"
    if args.json:
        output.print_json({"name": args.name, "profile": str(profile), "job": str(job), "launch": launch})
        return 0
    print(f"profile: {profile}")
    print(f"job:     {job}" + (" (was there, and is as it was)" if found else ""))
    if job.parent == Path.home():
        output.note(
            "all of your home folder would be sent to the hosts: move the job file into a folder of its own"
        )
    print(f"\nWhat to do next: look at both, then\n  {launch}")
    return 0


def _check_name(name: str) -> None:
    """Raise UsageError for what cannot be a profile's name, or is one already."""
    from profiles import library, values

    from ..fleet.errors import UsageError
    from .profiles import user_folder

    problem = "must not end in .toml, which is added" if name.endswith(".toml") else values.name(name)
    if problem is not None:
        raise UsageError(f"{name!r} cannot be a profile's name: it {problem}.", "Choose another name.")
    for entry in library.available(user_folder()):
        if entry.name == name:
            whose = "a shipped profile" if entry.shipped else "a profile of yours"
            raise UsageError(
                f"There is {whose} called {name} already: {entry.path}; nothing was written.",
                "Choose another name.",
            )


def _write(path: Path, text: str) -> None:
    """Write a new file, or nothing at all. Raises OSError, UnicodeError."""
    data = text.encode()
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
