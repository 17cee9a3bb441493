"""What a profile starts on the host: the target and its arguments, as a launch spec has them."""

from __future__ import annotations

from dataclasses import dataclass

from .keys import TRAIN_KEYS
from .schema import Profile

TRAINER = "trainer"
"""The module that runs the tasks, as in `python -m trainer`."""


@dataclass(frozen=True, slots=True)
class Command:
    """`kind` is `script`, `module` or `task`. The target of a task is the trainer, which the host is sent."""

    kind: str
    target: str
    args: tuple[str, ...]


def command(profile: Profile) -> Command:
    """The command of `profile`."""
    run = profile.run
    if run.script is not None:
        return Command("script", run.script, run.args)
    if run.module is not None:
        return Command("module", run.module, run.args)
    return Command("task", TRAINER, _flags(profile))


def _flags(profile: Profile) -> tuple[str, ...]:
    words = ["--task", str(profile.run.task), "--strategy", profile.run.strategy]
    for key in TRAIN_KEYS:
        if key.name in profile.train:
            # One word with `=`: a value that starts with a dash would else be read as the next flag.
            value = str(profile.train[key.name])
            flag = "--" + key.name.replace("_", "-")
            words += [f"{flag}={value}"] if value.startswith("-") or not value else [flag, value]
    return tuple(words)
