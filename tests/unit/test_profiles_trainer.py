"""The profiles' idea of the trainer and the trainer's own: two lists, in two folders, that must be one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from profiles import keys, library, schema
from profiles.command import command
from profiles.errors import ProfileError
from trainer import contract, strategies
from trainer.config import Config, parse

CHOSEN_BY_RUN = {"task", "strategy"}
"""Flags that come from [run], not from [train]."""


def test_the_train_keys_are_the_trainers_flags() -> None:
    ours = {key.name: (key.type, key.minimum, key.maximum, key.choices, key.words) for key in keys.TRAIN_KEYS}
    theirs = {
        field.name: tuple(field.metadata[name] for name in ("kind", "low", "high", "choices", "words"))
        for field in fields(Config)
        if field.name not in CHOSEN_BY_RUN
    }
    assert ours == theirs


def test_tasks_and_strategies_are_the_trainers() -> None:
    assert keys.TASKS == contract.TASKS
    assert tuple(strategies.STRATEGIES) == keys.STRATEGIES


def test_what_means_something_to_some_strategies_only_is_the_trainers() -> None:
    defaults = {field.name: field.default for field in fields(Config)}
    assert {name: set(meant_for) for name, (_, meant_for) in keys.MEANT_FOR.items()} == {
        name: set(meant_for) for name, meant_for in strategies.OPTIONS.items()
    }
    assert all(default == defaults[name] for name, (default, _) in keys.MEANT_FOR.items())


def test_a_profile_may_not_set_what_means_nothing_under_its_strategy() -> None:
    path = library.find("gpt-tiny")
    with pytest.raises(ProfileError, match='means nothing under "fsdp", only under zero1, zero2 or'):
        schema.load(path, ["run.strategy=fsdp", "train.offload=cpu"])
    for settings in (
        ["run.strategy=fsdp", "train.offload=none"],
        ["run.strategy=zero2", "train.offload=cpu"],
    ):
        schema.load(path, settings)


@pytest.mark.parametrize("key", keys.TRAIN_KEYS, ids=lambda key: key.name)
def test_the_trainer_refuses_what_a_profile_may_not_say(
    key: keys.Key, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--" + key.name.replace("_", "-")
    bad = [key.minimum - 1, key.maximum + 1, "many"] if key.minimum is not None and key.maximum else []
    bad += ["no such choice"] if key.choices else []
    for value in bad:
        assert key.problem(value) is not None
        with pytest.raises(SystemExit) as caught:
            parse([flag, str(value)])
        assert caught.value.code == 2
        assert f"argument {flag}: " in capsys.readouterr().err
    good = [*key.choices] or ([key.minimum, key.maximum] if key.minimum is not None else ["any", ""])
    for value in (*good, *key.words):
        assert key.problem(value) is None
        assert getattr(parse([flag, str(value)]), key.name) == value


@pytest.mark.parametrize("entry", library.available(), ids=lambda entry: entry.name)
def test_the_trainer_understands_the_shipped_profiles(entry: library.Entry) -> None:
    profile = schema.load(entry.path)
    cfg = parse(command(profile).args)
    for name, value in profile.train.items():
        assert getattr(cfg, name) == value
    assert (cfg.task, cfg.strategy) == (profile.run.task, profile.run.strategy)
