"""The values of a run's secrets, found on the launching machine. Nothing here ever shows one.

A host says of its runs where their secrets came from, and a host is not to be trusted: it might name any file
of this machine. So what a run was launched with from here, and on which hosts, is remembered: only that is
read again, and sent only there.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from agent import wire

from . import paths
from .errors import UsageError

MAX_BYTES = 64 * 1024
"""Of one value: more is surely not meant. A variable may have no more than 128 KiB."""


MAX_RECORDS = 1000
"""Runs of which it is remembered where their secrets came from: the newest."""


class Values(dict[str, str]):
    """Name -> value. What is printed of it by accident has only the names."""

    def __repr__(self) -> str:
        return f"<secrets: {', '.join(self) or 'none'}>"

    __str__ = __repr__


def resolve(sources: Mapping[str, str]) -> Values:
    """Find the value of each secret. A source is `env:VARIABLE` or `file:PATH`; `~` is the user's home.

    One line end at the end of a file does not belong to the value. Raises UsageError that names the secret
    and where it was looked for.
    """
    values = Values()
    for name, source in sources.items():
        kind, _, place = source.partition(":")
        if kind == "env":
            value = _of_variable(name, place)
        elif kind == "file":
            value = _of_file(name, place)
        else:
            raise UsageError(
                f"The secret {name} is not to be found: [secrets] must say where it is, not what it is.",
                f'Write {name} = "env:VARIABLE" or {name} = "file:PATH" into the profile.',
            )
        if not value:
            raise UsageError(f"The secret {name} is empty: {source}.", "Put its value there.")
        if "\0" in value or len(os.fsencode(value)) > MAX_BYTES:
            raise UsageError(
                f"The secret {name} from {source} cannot be the value of a variable.",
                f"It has a zero byte or more than {MAX_BYTES >> 10} KiB: is this the right place?",
            )
        values[name] = value
    return values


def resolve_again(run: str, sources: Mapping[str, str], host_ids: Collection[str]) -> Values:
    """`resolve` for the next attempt of a run, with sources that its hosts, `host_ids`, tell.

    Raises UsageError also for sources that the run was not launched with from this machine, as this user, and
    for hosts that it was not launched on.
    """
    sources_then, hosts_then = _remembered(run)
    if sources and not hosts_then.issuperset(host_ids):
        raise UsageError(
            f"The secrets of {run} are not sent: it was not launched from here on these hosts.",
            "Restart it from where it was launched, or launch it from its profile here.",
        )
    for name, source in sources.items():
        if sources_then.get(name) != source:
            raise UsageError(
                f"The secret {name[:80]!r} of {run} is not sent: its host says that it is {source[:200]!r} "
                "of this machine, but the run was not launched so from here.",
                "Restart it from where it was launched, or launch it from its profile here.",
            )
    return resolve(sources)


def known_here(run: str) -> Values:
    """The secrets that a run was launched with from here and that are still to be found, to be left out."""
    values = Values()
    for name, source in _remembered(run)[0].items():
        try:
            values.update(resolve({name: source}))
        except UsageError:
            continue
    return values


def _remembered(run: str) -> tuple[dict[str, str], set[str]]:
    """The sources of a run's secrets, and the hosts that it was launched on; none when that is not known."""
    try:
        known = json.loads(_record(run).read_text())
        return dict(known["sources"]), set(known["hosts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, set()


def remember(run: str, sources: Mapping[str, str], host_ids: Collection[str]) -> None:
    """Note down where the secrets of a run that is launched come from and go to, for `resolve_again`."""
    if not sources:
        return
    path = _record(run)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(json.dumps({"sources": dict(sources), "hosts": list(host_ids)}))
        part.replace(path)
        records = sorted(path.parent.glob("*.json"), key=lambda record: record.stat().st_mtime)
        for old in records[:-MAX_RECORDS]:
            old.unlink(missing_ok=True)
    except OSError:
        pass  # then a restart says that it does not know them


def _record(run: str) -> Path:
    if not wire.RUN_ID.match(run):
        raise UsageError(f"{run[:80]!r} is not the id of a run.", "See encamp status.")
    return paths.state_dir() / "secret-sources" / f"{run}.json"


def _of_variable(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise UsageError(
            f"The secret {name} is not there: the variable {variable} is not set here.",
            f"Set it where encamp is started: export {variable}=..., or see [secrets] in the profile.",
        )
    return value


def _of_file(name: str, place: str) -> str:
    path = Path(place).expanduser()
    try:
        # Not blocking, and looked at before it is read: it may be a pipe or a terminal.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(
                    f"The secret {name} is not there: {path} is not a plain file.", "Put it into one."
                )
            data = file.read(MAX_BYTES + 3)
    except OSError as error:
        raise UsageError(
            f"The secret {name} is not there: {path}: {error.strerror}.",
            "Put its value into this file, or see [secrets] in the profile.",
        ) from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        # Without its cause, which holds the value.
        raise UsageError(
            f"The secret {name} in {path} is not text in UTF-8.", "Is this the right file?"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
