"""Profiles as text: what is read, and what is said about everything that cannot be."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.command import command
from profiles.errors import Fault, ProfileError
from profiles.schema import TOP_KEYS, Profile, RunSection, from_table, override, parse

SCRIPT = '[run]\nscript = "train.py"\n'
TASK = '[run]\ntask = "gpt"\n'


def faults(text: str, *overrides: str) -> dict[str, str]:
    """Key -> what is said about it, of a profile that must not be accepted."""
    with pytest.raises(ProfileError) as caught:
        parse(text, "p.toml", overrides)
    return {fault.key: fault.allowed for fault in caught.value.faults}


def test_everything_that_a_profile_may_say() -> None:
    profile = parse(
        """
        name = "mine"
        description = "one line"
        [run]
        strategy = "ddp"
        script = "~/work/train.py"
        args = ["--epochs", "3"]
        cwd = "~/work"
        nproc_per_node = 4
        python = "/venv/bin/python"
        stop_grace_seconds = 5
        stall_seconds = 90
        [env]
        KEY = "value"
        """,
        "p.toml",
    )
    assert profile == Profile(
        name="mine",
        file="p.toml",
        description="one line",
        run=RunSection(
            script="~/work/train.py",
            args=("--epochs", "3"),
            cwd="~/work",
            nproc_per_node=4,
            python="/venv/bin/python",
            stop_grace_seconds=5.0,
            stall_seconds=90.0,
        ),
        env={"KEY": "value"},
    )


def test_what_a_profile_may_leave_out() -> None:
    profile = parse(SCRIPT, "/some/where/My job.toml")
    assert profile.name == "My-job"
    assert profile.run == RunSection(script="train.py")
    assert profile.run.nproc_per_node == 0
    assert (profile.env, profile.train, profile.description) == ({}, {}, "")


def test_profiles_are_frozen_and_have_no_other_attributes() -> None:
    profile = parse(SCRIPT, "p.toml")
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "other"  # type: ignore[misc]
    assert not hasattr(profile, "__dict__")
    assert not hasattr(profile.run, "__dict__")


@pytest.mark.parametrize("key", ["script", "module", "task"])
def test_a_profile_runs_exactly_one_thing(key: str) -> None:
    assert "exactly one of script, module or task; it has none" in faults("")["run"]
    other = "script" if key != "script" else "module"
    text = f'[run]\n{key} = "gpt"\n{other} = "gpt"\n'
    assert "exactly one of script, module or task; it has" in faults(text)["run"]


def test_all_faults_are_told_at_once_with_file_key_value_and_what_is_allowed() -> None:
    with pytest.raises(ProfileError) as caught:
        parse('name = 3\n[run]\nscript = ""\npython = 3.1\n[env]\nN = 1\n', "p.toml")
    assert str(caught.value).splitlines() == [
        "p.toml: name = 3: must be 1 to 60 letters, digits, dots, dashes or underscores, "
        "and start with a letter or digit",
        'p.toml: run.script = "": must not be empty',
        'p.toml: run.python = 3.1: must be a string, in quotes: "..."',
        'p.toml: env.N = 1: must be a string, in quotes, for example "1"',
    ]
    assert caught.value.faults[0] == Fault("p.toml", "name", 3, caught.value.faults[0].allowed)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[run]\ntask = "gpt"\nstrateggy = "ddp"\n', "run.strateggy", 'did you mean "strategy"'),
        ('[run]\ntask = "gpt"\n[trian]\nsteps = 3\n', "trian", 'did you mean "train"'),
        ('steps = 3\n[run]\ntask = "gpt"\n', "steps", 'did you mean "train.steps"'),
        ('[run]\ntask = "gpt"\nsteps = 3\n', "run.steps", 'did you mean "train.steps"'),
        (
            '[run]\ntask = "gpt"\n[train]\nmicro_batsh = 3\n',
            "train.micro_batsh",
            'did you mean "micro_batch"',
        ),
        ('[run]\ntask = "gpt"\nxyz = 3\n', "run.xyz", "[run] may have strategy, script"),
        ('"a\\u001bb" = 1\n[run]\ntask = "gpt"\n', '"a\\u001bb"', "a profile may have name"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known_one(text: str, key: str, said: str) -> None:
    assert said in faults(text)[key]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[run]\nscript = "t.py"\nstrategy = "xyz"\n', "run.strategy", "is no strategy; there are ddp, fsdp"),
        ('[run]\nscript = "t.py"\nstrategy = "pipeline"\n', "run.strategy", 'did you mean "pp"?'),
        ('[run]\nscript = "t.py"\nstrategy = 3\n', "run.strategy", 'must be "ddp"'),
        ('[run]\nscript = "t.py"\nstrategy = "fdp"\n', "run.strategy", 'did you mean "ddp", "fsdp" or'),
        ('[run]\nscript = "t.py"\nstrategy = "FSDP_TP"\n', "run.strategy", '"fsdp+tp"?'),
        ('[run]\ntask = "gtp"\n', "run.task", 'did you mean "gpt"'),
        ('[run]\ntask = "job.sh"\n', "run.task", "your own job file"),
        ("[run]\ntask = 3\n", "run.task", 'must be "gpt"'),
        ('[run]\nmodule = "a-b"\n', "run.module", 'as after "python -m"'),
        ('[run]\nscript = "a\\u0000b"\n', "run.script", "NUL"),
        ('[run]\nscript = "t.py"\nargs = "--x"\n', "run.args", "must be a list of strings"),
        ('[run]\nscript = "t.py"\nargs = ["--x", 3]\n', "run.args", "entry 2 must be a string"),
        ('[run]\ntask = "gpt"\nargs = ["--x"]\n', "run.args", "a task gets its options from [train]"),
        ('[run]\nscript = "t.py"\nnproc_per_node = 0\n', "run.nproc_per_node", '"auto" or a whole number'),
        ('[run]\nscript = "t.py"\nnproc_per_node = 2.0\n', "run.nproc_per_node", '"auto" or a whole number'),
        ('[run]\nscript = "t.py"\nnproc_per_node = true\n', "run.nproc_per_node", '"auto" or a whole number'),
        (
            '[run]\nscript = "t.py"\nnproc_per_node = "all"\n',
            "run.nproc_per_node",
            '"auto" or a whole number',
        ),
        ('[run]\nscript = "t.py"\nstop_grace_seconds = -1\n', "run.stop_grace_seconds", "from 0 to 3600"),
        ('[run]\nscript = "t.py"\nstop_grace_seconds = nan\n', "run.stop_grace_seconds", "from 0 to 3600"),
        ('[run]\nscript = "t.py"\nstall_seconds = -1\n', "run.stall_seconds", "from 0 to 86400"),
        ('run = "gpt"\n', "run", "must be a table: a line [run]"),
        (SCRIPT + "[env]\nA = true\n", "env.A", 'for example "true"'),
        (SCRIPT + "[env]\nA = []\n", "env.A", "must be a string"),
        (SCRIPT + '[env]\nRANK = "1"\n', "env.RANK", "set by the launcher"),
        (SCRIPT + '[env]\nENCAMP_RUN = "1"\n', "env.ENCAMP_RUN", "set by the launcher"),
        (SCRIPT + '[env]\n"A B" = "1"\n', 'env."A B"', "no name for a variable"),
        (SCRIPT + '[env]\n"A=" = "1"\n', 'env."A="', "no name for a variable"),
        (SCRIPT + "[train]\nsteps = 3\n", "train", "only goes with run.task"),
        (TASK + '[train]\nsteps = "3"\n', "train.steps", "a whole number of at least 1"),
        (TASK + "[train]\nsteps = 1e3\n", "train.steps", "a whole number of at least 1"),
        (TASK + "[train]\nsteps = true\n", "train.steps", "a whole number of at least 1"),
        (TASK + "[train]\nsteps = 2147483648\n", "train.steps", "of at least 1 and at most 2147483647"),
        (TASK + "[train]\nsteps = 0\n", "train.steps", "a whole number of at least 1"),
        (TASK + "[train]\nseed = -1\n", "train.seed", "from 0 to 4294967295"),
        (TASK + "[train]\nlearning_rate = inf\n", "train.learning_rate", "a number from 0 to 1000"),
        (TASK + '[train]\nprecision = "fp8"\n', "train.precision", 'must be "fp32", "bf16" or'),
        (TASK + "[train]\nsteps = " + "9" * 4000 + "\n", "train.steps", "a whole number of at least 1"),
    ],
)
def test_wrong_values(text: str, key: str, said: str) -> None:
    assert said in faults(text)[key]


def test_a_whole_number_will_do_for_a_number() -> None:
    assert parse(TASK + "[train]\nweight_decay = 0\n", "p.toml").train == {"weight_decay": 0}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb = = 2\n", "line 2, column 5"),
        ("[run\n", "line 1, column 5"),
        ("a = 1\nb = ", "line 2, column 5"),
        ("a = 1\na = 2\n", "line 2, column 6"),
    ],
)
def test_what_is_not_toml_is_told_with_line_and_column(text: str, place: str) -> None:
    message = faults(text)[""]
    assert message.startswith("not TOML:")
    assert place in message


def test_endless_nesting_is_refused() -> None:
    assert "nested too deeply" in faults("a = " + "[" * 5000)[""]


# --- --set -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train.steps=50", 50),
        ("train.steps = 50", 50),
        ("train.learning_rate=1e-3", 1e-3),
        ("train.precision=bf16", "bf16"),
        ('train.precision="bf16"', "bf16"),
        ("train.precision='bf16'", "bf16"),
        ("train.data_dir=/a=b", "/a=b"),
        ("train.data_dir=", ""),
        ("train.data_dir=a\nb", "a\nb"),
        ("train.data_dir=[1, 2", "[1, 2"),
        ("train.x=[1, 2]", [1, 2]),
        ("train.x=true", True),
        ("env.THREADS=4", "4"),
        ("env.FLAG=true", "true"),
        ('env.FLAG="true"', "true"),
        ("env.PATHS=a:b#c", "a:b#c"),
    ],
)
def test_a_setting_is_toml_or_else_a_string(setting: str, value: object) -> None:
    table, key = override({"train": {"steps": 1}}, setting)
    section, name = key.split(".")
    assert table[section][name] == value


def test_a_setting_leaves_the_table_that_it_was_given_alone() -> None:
    table = {"train": {"steps": 1}}
    override(table, "train.steps=2")
    assert table == {"train": {"steps": 1}}


@pytest.mark.parametrize("setting", ["train.steps", "=3", "a..b=3", "train.ste ps=3", ""])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    with pytest.raises(ProfileError, match="must be key=value"):
        override({}, setting)


def test_a_setting_below_a_plain_value_is_refused() -> None:
    with pytest.raises(ProfileError, match="is not a table, so it has no key x"):
        override({"name": "mine"}, "name.x=3")


def test_settings_take_the_place_of_what_the_file_says() -> None:
    profile = parse(TASK + "[train]\nsteps = 1\n", "p.toml", ["train.steps=2", "env.A=1", "train.steps=3"])
    assert profile.train == {"steps": 3}
    assert profile.env == {"A": "1"}


def test_a_wrong_setting_is_told_as_the_command_lines() -> None:
    with pytest.raises(ProfileError) as caught:
        parse(TASK + "[train]\nsteps = 1\nseed = -1\n", "p.toml", ["train.steps=many", "train.stepz=3"])
    assert str(caught.value).splitlines() == [
        '--set train.stepz=3: train.stepz = 3: unknown key; did you mean "steps"?',
        '--set train.steps=many: train.steps = "many": must be a whole number of at least 1',
        "p.toml: train.seed = -1: must be a whole number from 0 to 4294967295",
    ]


# --- commands ----------------------------------------------------------------------------------------------


def test_a_script_and_a_module_run_as_they_are() -> None:
    what = command(parse('[run]\nscript = "a b.py"\nargs = ["--x", ""]\n', "p.toml"))
    assert (what.kind, what.target, what.args) == ("script", "a b.py", ("--x", ""))
    what = command(parse('[run]\nmodule = "pkg.train"\n', "p.toml"))
    assert (what.kind, what.target, what.args) == ("module", "pkg.train", ())


def test_a_task_becomes_flags_of_the_trainer() -> None:
    text = TASK + '[train]\ndata_dir = "-odd"\nsteps = 50\nlearning_rate = 1e-5\nmicro_batch = 4\n'
    what = command(parse(text, "p.toml"))
    assert (what.kind, what.target) == ("task", "trainer")
    assert " ".join(what.args) == (
        "--task gpt --strategy ddp --steps 50 --micro-batch 4 --learning-rate 1e-05 --data-dir=-odd"
    )


# --- whatever is thrown at it ------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_profile_or_a_profile_error(text: str) -> None:
    with pytest.raises(ProfileError):
        parse(text, "p.toml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["x", *TOP_KEYS]), VALUES)
def test_any_value_of_any_key_is_accepted_or_told(key: str, value: object) -> None:
    with pytest.raises(ProfileError) as caught:
        from_table({key: value}, "p.toml", {})
    for fault in caught.value.faults:
        assert str(fault).isprintable()
        assert len(str(fault)) < 1000
