"""Virtual environments on top of a Python of this host: which one a launch means, and whether it is here.

An environment is named by all that it is made from, so it is built once and used by every run that wants the
same. It is complete when its marker is there, and is never changed after that. Building is `env_build`'s.
Everything here blocks on the disk, and the first time on an interpreter that is asked for torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Optional

from . import env_recipes, files, paths, probe, process, wire
from .errors import RunError

MARKER = probe.MARKER
"""Renamed into an environment's folder when everything in it is there; its time is that of the last use."""

UNUSED_SECONDS = 30 * 86400.0
"""An environment that no launch has used for so long is removed when another one is built."""

_NAME = re.compile(r"[0-9a-f]{32}\Z")

_TORCH = re.compile(r"\s*(torch(?![\w.-])|([^@]*[/@]\s*)?torch-\d)", re.IGNORECASE)
"""The package torch itself: not torchvision, but a wheel of it, by path or address."""


def names_torch(setup: wire.EnvSetup) -> bool:
    """Whether `packages` ask for another torch than the interpreter's own."""
    return any(_TORCH.match(package) for package in setup.packages)


def env_hash(base: probe.Interpreter, setup: wire.EnvSetup) -> str:
    """The name of the environment: another one when the interpreter, its torch or the packages are others."""
    real = os.path.realpath(base.path)
    try:
        status = os.stat(real)
        stamp = [status.st_size, status.st_mtime_ns]
    except OSError:
        stamp = []
    made_from = [base.path, real, stamp, base.version, base.torch, setup.packages, setup.pip_args]
    if setup.recipe:
        made_from += [setup.recipe, env_recipes.find(setup.recipe).packages]
    return hashlib.sha256(json.dumps(made_from).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def find(home: str, base: probe.Interpreter, setup: wire.EnvSetup) -> Optional[str]:
    """The interpreter of the environment, or None when it is not built. Notes down that it was used."""
    folder = paths.env_dir(home, env_hash(base, setup))
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, MARKER)) or not os.access(python, os.X_OK):
        return None
    try:
        os.utime(os.path.join(folder, MARKER))
    except OSError:
        pass  # a full disk: then it counts as not used
    return python


def python_of(home: str, interpreter_path: str, setup: wire.EnvSetup) -> Optional[str]:
    """`find`, for the interpreter at a path."""
    return find(home, probe.inspect(home, interpreter_path), setup)


def base(home: str, python: str, cwd: str, setup: wire.EnvSetup) -> probe.Interpreter:
    """The interpreter that the environment is made from: as `probe.resolve`, which see.

    It needs no torch when the packages name it, or the recipe does without. One of our own environments
    stands for what it was made from. Raises RunError `no-python`.
    """
    python = base_of(home, python) or python
    if setup.recipe and not env_recipes.find(setup.recipe).torch:
        found = probe.resolve(home, python, cwd, ())
        return probe.inspect(home, base_of(home, found.path) or found.path)
    try:
        return probe.resolve(home, python, cwd)
    except RunError as error:
        if setup.recipe and error.code == "no-python":
            hint = "install torch there, or name a Python that has it with --python"
            raise RunError(error.code, error.message, hint) from error
        if not names_torch(setup):
            raise
        named = python if "/" in python else shutil.which(python) or python
        named = os.path.join(cwd, os.path.expanduser(named))
        for path in probe.candidates(cwd) if python == "auto" else [named]:
            found = probe.inspect(home, path)
            if found.version and not found.error:
                return found
        raise


def folder_of(cwd: str) -> str:
    """The folder that a launch means by `cwd`, which need not be there."""
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(cwd))


def resolve(
    home: str, python: str, cwd: str, setup: wire.EnvSetup, planned: bool = False
) -> probe.Interpreter:
    """The environment's interpreter. Raises RunError `no-python`, or `no-env` when it is not built.

    Where that is only `planned` it is the one that it is made from: without its torch, if it gets another.
    """
    made_from = base(home, python, cwd, setup)
    built = find(home, made_from, setup)
    if built is None and planned:
        return made_from._replace(torch=None) if names_torch(setup) else made_from
    if built is None:
        raise RunError(
            "no-env",
            "the environment with the packages of [env_setup] is not built on this host",
            "launch or restart the run with encamp, which builds it",
        )
    return probe.inspect(home, built)


def base_of(home: str, python: str) -> str:
    """The interpreter that the environment of `python` is made from, as a path; empty when it is not ours."""
    folder = os.path.dirname(os.path.dirname(python))
    if os.path.dirname(folder) != paths.env_dir(home):
        return ""
    return str((files.read_json(os.path.join(folder, MARKER)) or {}).get("base") or "")


def sweep(home: str) -> None:
    """Remove environments that nothing has used for long, and what broken builds left that long ago."""
    for name in _names(home):
        folder = paths.env_dir(home, name)
        marker = os.path.join(folder, MARKER)
        used = files.changed_at(marker) or files.changed_at(folder)
        if time.time() - used < UNUSED_SECONDS or _in_use(folder):
            continue
        lock = take(home, name)
        if lock is not None:
            remove(folder)
            os.ftruncate(lock, 0)
            os.close(lock)


def take(home: str, name: str) -> Optional[int]:
    """The lock of an environment, which is also the log of its build; None while a build has it.

    Whoever holds a copy of the descriptor holds the lock: all processes of the build, as it is where they
    write to. Raises OSError.
    """
    files.make_dirs(paths.env_dir(home))
    log = os.open(paths.env_log(home, name), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(log)
        return None
    except OSError:
        os.close(log)
        raise
    return log


def remove(folder: str) -> None:
    """Remove an environment, its marker first: half of one must not look like a whole."""
    try:
        os.unlink(os.path.join(folder, MARKER))
    except OSError:
        pass  # it has none
    shutil.rmtree(folder, ignore_errors=True)


def describe(home: str) -> List[Dict[str, Any]]:
    """The environments that there are, those that are not complete first, then the newest."""
    found = []
    for name in _names(home):
        folder = paths.env_dir(home, name)
        made = files.read_json(os.path.join(folder, MARKER)) or {}
        if not os.path.isdir(folder):
            continue
        found.append(
            {
                "python": os.path.join(folder, "bin", "python"),
                "state": "complete" if made else "not complete",
                "used": files.changed_at(os.path.join(folder, MARKER)),
                **{key: made.get(key) for key in ("base", "packages", "recipe", "built", "seconds")},
            }
        )
    return sorted(found, key=lambda each: -(each["built"] or float("inf")))


def _names(home: str) -> Iterator[str]:
    try:
        names = os.listdir(paths.env_dir(home))
    except OSError:
        return
    for name in names:
        if _NAME.match(name):
            yield name


def _in_use(folder: str) -> bool:
    """Whether a process was started with a program in it: a run may last longer than that."""
    prefix = os.fsencode(folder) + b"/"
    for pid in process.pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read(4096).startswith(prefix):
                    return True
        except OSError:
            pass  # it has just ended
    return False
