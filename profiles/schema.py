"""Reads a profile: from TOML text to a `Profile` in which every value has been checked.

Everything that is wrong with a file is reported at once. A value from the command line (`--set key=value`)
takes the place of the file's before anything is checked; a fault in it is reported as the command line's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ABSENT, Fault, ProfileError
from .keys import STRATEGIES, TASKS, TRAIN_KEYS, Key, did_you_mean, either, json_word, key_word, text_problem
from .source import Table, override, parse_toml, read

__all__ = ["Profile", "RunSection", "load", "override", "parse"]

TARGETS = ("script", "module", "task")
"""The keys of [run] that say what runs. Exactly one is present."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")

OURS = re.compile(
    r"ENCAMP_.*\Z|(LOCAL_|GROUP_|ROLE_)?RANK\Z|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE\Z|MASTER_(ADDR|PORT)\Z"
    r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE|ERROR_FILE)\Z"
)
"""Variables that the launcher sets for each rank."""


@dataclass(frozen=True, slots=True)
class RunSection:
    """What starts, and how. `nproc_per_node` 0 is "auto": a rank a GPU, or a core on a host without GPUs."""

    strategy: str = "ddp"
    script: str | None = None
    module: str | None = None
    task: str | None = None
    args: tuple[str, ...] = ()
    cwd: str = ""
    nproc_per_node: int = 0
    python: str = "auto"
    stop_grace_seconds: float = 30.0


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


TOP_KEYS = ("name", "description", "run", "env", "train")
RUN_KEYS = ("strategy", *TARGETS, "args", "cwd", "nproc_per_node", "python", "stop_grace_seconds")
DOTTED = (
    *TOP_KEYS,
    *(f"run.{name}" for name in RUN_KEYS),
    *(f"train.{key.name}" for key in TRAIN_KEYS),
)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Profile:
    """Read the profile in the file `path`, each of `overrides` being a `key=value`. Raises ProfileError."""
    return parse(read(Path(path)), str(path), overrides)


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> Profile:
    """Read a profile from `text`; `where` names it in messages. Raises ProfileError."""
    table = parse_toml(text, where)
    given: dict[str, str] = {}
    for setting in overrides:
        table, key = override(table, setting)
        given[key] = f"--set {setting}"
    return _Reader(where, given).profile(table)


class _Reader:
    """Turns one table into a profile and collects the faults on the way."""

    def __init__(self, where: str, given: Mapping[str, str]) -> None:
        self.where = where
        self.given = given
        self.faults: list[Fault] = []

    def fault(self, key: str, value: object, allowed: str) -> None:
        self.faults.append(Fault(self.given.get(key, self.where), key, value, allowed))

    def profile(self, table: Table) -> Profile:
        self.unknown("", table, TOP_KEYS)
        name = self.take(table, "name", default_name(self.where), self.name)
        description = self.take(table, "description", "", _is_string)
        run = self.run(self.section(table, "run"))
        env = self.env(self.section(table, "env") or {})
        train = self.train(self.section(table, "train") or {})
        if train and (run.script is not None or run.module is not None):
            self.fault(
                "train", ABSENT, "only goes with run.task; a script or module gets its options from run.args"
            )
        if self.faults:
            raise ProfileError(self.faults)
        return Profile(name=name, file=self.where, run=run, description=description, env=env, train=train)

    def run(self, table: Table | None) -> RunSection:
        if table is None:
            return RunSection()
        self.unknown("run", table, RUN_KEYS)
        present = [key for key in TARGETS if key in table]
        if len(present) != 1:
            found = " and ".join(present) if present else "none"
            self.fault("run", ABSENT, f"must have exactly one of {either(TARGETS)}; it has {found}")
        args = self.take(table, "run.args", [], _is_list_of_strings)
        if args and "task" in present:
            self.fault(
                "run.args", args, "only goes with script and module; a task gets its options from [train]"
            )
        return RunSection(
            strategy=self.take(
                table, "run.strategy", "ddp", Key("strategy", str, choices=STRATEGIES).problem
            ),
            script=self.take(table, "run.script", None, _is_filled_string),
            module=self.take(table, "run.module", None, _is_module),
            task=self.take(table, "run.task", None, _is_task),
            args=tuple(args),
            cwd=self.take(table, "run.cwd", "", _is_string),
            nproc_per_node=self.nproc(table),
            python=self.take(table, "run.python", "auto", _is_filled_string),
            stop_grace_seconds=float(
                self.take(table, "run.stop_grace_seconds", 30, Key("", float, 0, 3600).problem)
            ),
        )

    def nproc(self, table: Table) -> int:
        value = self.take(table, "run.nproc_per_node", "auto", _is_nproc)
        return 0 if value == "auto" else int(value)

    def env(self, table: Table) -> dict[str, str]:
        for name, value in table.items():
            key = f"env.{key_word(name)}"
            if not VARIABLE.match(name):
                self.fault(key, value, "is no name for a variable: letters, digits and _, not a digit first")
            elif OURS.match(name):
                self.fault(key, value, "is set by the launcher for each rank and cannot be chosen")
            elif not isinstance(value, str):
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                example = f", for example {json_word(shown)}" if isinstance(value, int | float) else ""
                self.fault(key, value, f"must be a string, in quotes{example}")
            elif problem := text_problem(value):
                self.fault(key, value, problem)
        return {name: value for name, value in table.items() if isinstance(value, str)}

    def train(self, table: Table) -> dict[str, int | float | str]:
        known = {key.name: key for key in TRAIN_KEYS}
        self.unknown("train", table, known)
        return {
            name: self.take(table, f"train.{name}", "", known[name].problem)
            for name in table
            if name in known
        }

    def section(self, table: Table, name: str) -> Table | None:
        value = table.get(name, {})
        if isinstance(value, dict):
            return value
        self.fault(name, value, f"must be a table: a line [{name}] and its keys below")
        return None

    def take(self, table: Table, key: str, default: Any, problem: Callable[[object], str | None]) -> Any:
        """The checked value of the last part of `key`, or `default` when it is absent or wrong."""
        name = key.rpartition(".")[2]
        if name not in table:
            return default
        what = problem(table[name])
        if what is None:
            return table[name]
        self.fault(key, table[name], what)
        return default

    def name(self, value: object) -> str | None:
        if isinstance(value, str) and NAME.match(value):
            return None
        return (
            "must be 1 to 60 letters, digits, dots, dashes or underscores, and start with a letter or digit"
        )

    def unknown(self, section: str, table: Table, known: Iterable[str]) -> None:
        names = list(known)
        for name, value in table.items():
            if name in names:
                continue
            prefix = f"{section}." if section else ""
            elsewhere = [dotted for dotted in DOTTED if dotted.rpartition(".")[2] == name]
            hint = did_you_mean(name, names)
            if elsewhere:
                hint = f"; did you mean {json_word(elsewhere[0])}?"
            elif not hint:
                place = f"[{section}]" if section else "a profile"
                hint = f"; {place} may have {', '.join(names)}"
            shown = ABSENT if isinstance(value, dict) else value
            self.fault(prefix + key_word(name), shown, f"unknown key{hint}")


def default_name(where: str) -> str:
    """A valid name from a file's stem."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(where).stem).lstrip("._-")[:60]
    return name or "run"


def _is_string(value: object) -> str | None:
    return Key("", str).problem(value)


def _is_filled_string(value: object) -> str | None:
    return "must not be empty" if value == "" else _is_string(value)


def _is_module(value: object) -> str | None:
    if isinstance(value, str) and MODULE.match(value):
        return None
    return 'must be the name of a module as after "python -m", for example "package.train"'


def _is_task(value: object) -> str | None:
    if isinstance(value, str) and (value in TASKS or (value.endswith(".py") and "\0" not in value)):
        return None
    hint = did_you_mean(value, TASKS) if isinstance(value, str) else ""
    shipped = either(map(json_word, TASKS))
    return f'must be {shipped}, or the path on the host of your own job file, "....py"{hint}'


def _is_list_of_strings(value: object) -> str | None:
    if not isinstance(value, list):
        return 'must be a list of strings: ["--epochs", "3"]'
    for index, entry in enumerate(value):
        problem = _is_string(entry)
        if problem:
            return f"entry {index + 1} {problem}"
    return None


def _is_nproc(value: object) -> str | None:
    if value == "auto" or Key("", int, 1, 4096).problem(value) is None:
        return None
    return 'must be "auto" or a whole number from 1 to 4096'
