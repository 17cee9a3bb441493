"""Reads a profile: from TOML text to a `Profile` in which every value has been checked.

Everything that is wrong with a file is reported at once. A value from the command line (`--set key=value`)
takes the place of the file's before anything is checked; a fault in it is reported as the command line's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import sections, values
from .errors import ABSENT, ProfileError
from .reader import Reader
from .sections import CodeSection, EnvSetupSection, NetworkSection, RunSection
from .source import Table, override, parse_toml, read

__all__ = [
    "CodeSection",
    "EnvSetupSection",
    "NetworkSection",
    "Profile",
    "RunSection",
    "load",
    "override",
    "parse",
]

TOP_KEYS = ("name", "description", "run", "env", "train", "code", "env_setup", "secrets", "network")


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile, checked. `file` says where it came from, for messages and for the run's record."""

    name: str
    file: str
    run: RunSection
    description: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    train: Mapping[str, int | float | str] = field(default_factory=dict)
    """Only keys that the profile sets; the trainer has defaults for the others."""
    code: CodeSection | None = None
    """None: no project is sent, and paths are the host's."""
    env_setup: EnvSetupSection | None = None
    """None: the ranks run in the interpreter as it is."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> where its value is found here: `env:VARIABLE` or `file:PATH`."""
    network: NetworkSection = field(default_factory=NetworkSection)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Profile:
    """Read the profile in the file `path`, each of `overrides` being a `key=value`. Raises ProfileError."""
    return parse(read(Path(path)), str(path), overrides)


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> Profile:
    """Read a profile from `text`; `where` names it in messages. Raises ProfileError."""
    table = parse_toml(text, where)
    given: dict[str, str] = {}
    for setting in overrides:
        table, key = override(table, setting)
        # Who mistakes [secrets] for a place for values shall not find them in messages and logs.
        given[key] = f"--set {key}=..." if key.startswith("secrets.") else f"--set {setting}"
    return from_table(table, where, given)


def from_table(table: Table, where: str, given: Mapping[str, str]) -> Profile:
    """The profile in `table`; `given` says which keys are not from `where` but from elsewhere.

    Raises ProfileError.
    """
    reader = Reader(where, given, (*TOP_KEYS, *sections.DOTTED))
    reader.unknown("", table, TOP_KEYS)
    name = reader.take(table, "name", default_name(where), values.name)
    description = reader.take(table, "description", "", values.string)
    run = sections.run(reader, reader.section(table, "run"))
    env = sections.env(reader, reader.section(table, "env") or {})
    train = sections.train(reader, reader.section(table, "train") or {}, run.strategy)
    if train and (run.script is not None or run.module is not None):
        reader.fault(
            "train", ABSENT, "only goes with run.task; a script or module gets its options from run.args"
        )
    code = reader.section(table, "code") if "code" in table else None
    env_setup = reader.section(table, "env_setup") if "env_setup" in table else None
    profile = Profile(
        name=name,
        file=where,
        run=run,
        description=description,
        env=env,
        train=train,
        code=None if code is None else sections.code(reader, code),
        env_setup=None if env_setup is None else sections.env_setup(reader, env_setup),
        secrets=sections.secrets(reader, reader.section(table, "secrets") or {}, env),
        network=sections.network(reader, reader.section(table, "network") or {}),
    )
    if reader.faults:
        raise ProfileError(reader.faults)
    return profile


def default_name(where: str) -> str:
    """A valid name from a file's stem."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(where).stem).lstrip("._-")[:60]
    return name or "run"
