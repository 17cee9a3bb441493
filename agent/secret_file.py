"""The secrets of an attempt: a file that only the user can read, from its preparation to its end.

They are nowhere else on the disk, and never in a command line or in what a process is started with, which
/proc shows. The shim (`rank.py`) reads the file; the supervisor removes it.
"""

from __future__ import annotations

import json
import os
from typing import List, Mapping

from . import files, launch, paths, wire
from .attempt import Attempt
from .errors import RunError

NAME = "secrets.json"


def check(spec: wire.LaunchSpec, values: Mapping[str, str]) -> None:
    """Check that all secrets of `spec` are there and can be variables. Raises RunError; no value is said."""
    launch.check_names("secrets", values)
    missing = sorted(set(spec.secret_sources) - set(values))
    if missing:
        raise RunError(
            "no-secrets",
            f"the run needs the {'secret' if len(missing) == 1 else 'secrets'} {', '.join(missing)}",
            "launch or restart it with an encamp that sends them, see [secrets] in the profile",
        )
    for name, value in values.items():
        if "\0" in value or len(os.fsencode(value)) > launch.MAX_WORD - len(os.fsencode(name)) - 1:
            raise RunError("bad-spec", f"the secret {name} holds a zero byte or is too long for a variable")


def write(attempt_dir: str, values: Mapping[str, str]) -> None:
    """Write the file, if there is anything to write. Raises OSError."""
    if values:
        data = json.dumps(dict(values), separators=(",", ":")).encode("ascii")  # as the shim reads it
        files.write_bytes(os.path.join(attempt_dir, NAME), data)


def remove(attempt_dir: str) -> None:
    """Remove it, and what a writer that was killed left of it. Does what it can."""
    try:
        names = os.listdir(attempt_dir)
    except OSError:
        return
    for name in names:
        if name.startswith(NAME):
            try:
                os.unlink(os.path.join(attempt_dir, name))
            except OSError:
                pass  # gone meanwhile, or a disk that cannot be written: whoever looks next tries again


def sweep(home: str) -> None:
    """Remove the secrets of all attempts that are over. Blocks on the disk."""
    for run in _names(paths.runs_dir(home)):
        for number in _names(paths.attempts_dir(home, run)):
            if number.isdigit():
                attempt = Attempt(home, run, int(number))
                if any(name.startswith(NAME) for name in _names(attempt.dir)) and attempt.condition().over:
                    remove(attempt.dir)


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
