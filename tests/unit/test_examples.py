"""The examples that ship, and the files that `encamp profiles new` writes: they learn, as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from parity import train as train_rank
from parity import worst
from ranks import together
from training import Trainings, records, reference

from profiles import library, schema, starter
from profiles.command import command
from trainer import contract
from trainer.config import parse
from trainer.errors import UsageError
from tui.__main__ import main
from tui.fleet import project

SHORT = ("--warmup-steps", "3", "--learning-rate", "0.003", "--device", "cpu", "--micro-batch", "16")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration of its own beside it."""
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path / "work"


def options(profile: schema.Profile) -> tuple[str, ...]:
    """The trainer's options of a profile."""
    return command(profile).args


# --- the shipped ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["images", "regression"])
def test_an_example_learns_and_its_guesses_get_better(train: Trainings, task: str) -> None:
    words = (*SHORT, "--micro-batch", "32", "--steps", "60", "--eval-every", "20", "--eval-batches", "4")
    reported = train("--task", task, *words)
    assert reported[60] < 0.8 * reported[1]
    measured = [entry for entry in records(train.rank_dir) if "eval_loss" in entry]
    assert measured[-1]["eval_loss"] < measured[0]["eval_loss"]
    name = {"images": "eval_accuracy", "regression": "eval_absolute_error"}[task]
    better = measured[-1][name] - measured[0][name]
    assert better > 0 if task == "images" else better < 0


def test_samples_are_the_same_for_every_rank_and_split_held_apart() -> None:
    for task in ("images", "regression"):
        job = contract.load(task)
        first, again, held_out = (
            job.build_dataset(parse([]), split) for split in ("train", "train", "valid")
        )
        assert (len(first), len(held_out)) == (20_000, 2_000)
        assert (first[7][0] == again[7][0]).all()
        assert not any((first[index][0] == held_out[index][0]).all() for index in range(20))
    digits = [
        int(contract.load("images").build_dataset(parse([]), "train")[index][1]) for index in range(400)
    ]
    assert set(digits) == set(range(10))


@pytest.mark.parametrize("task", ["images", "regression"])
def test_options_that_an_example_does_not_know(task: str) -> None:
    job = contract.load(task)
    with pytest.raises(UsageError, match=f"--size smal: {task} has no such size; did you mean small"):
        job.build_model(parse(["--size", "smal"]))
    with pytest.raises(UsageError, match=f"--data-dir /x: {task} makes its own data; leave it out"):
        job.build_dataset(parse(["--data-dir", "/x"]), "train")
    assert sum(p.numel() for p in job.build_model(parse(["--size", "large"])).parameters()) > 1e7


@pytest.mark.torch
@pytest.mark.parametrize(
    ("task", "strategy", "ranks"),
    [
        ("images", "fsdp", 2),
        ("images", "pp", 2),
        pytest.param("images", "tp", 2, marks=pytest.mark.slow),
        pytest.param("images", "ddp", 2, marks=pytest.mark.slow),
        ("regression", "tp", 2),
        ("regression", "pp", 2),
        pytest.param("regression", "fsdp+tp", 4, marks=pytest.mark.slow),
        pytest.param("regression", "hsdp", 4, marks=pytest.mark.slow),
    ],
)
def test_an_example_learns_the_same_under_other_strategies(
    tmp_path: Path, task: str, strategy: str, ranks: int
) -> None:
    words = ("--task", task, "--steps", "6", "--warmup-steps", "2", "--log-every", "1")
    expected = reference(task, *words[2:], global_batch=16)
    samples = ("--global-batch", "16", "--micro-batch", "4")
    curves = together(ranks, train_rank, ranks, tmp_path, (*words, "--strategy", strategy, *samples), 6)
    for curve in curves:
        assert worst(curve, expected) < 2e-4


def test_the_profiles_of_the_examples_are_whole() -> None:
    found = {}
    for name in ("image-classifier", "regression"):
        profile = schema.load(library.find(name))
        cfg = parse(options(profile))
        found[name] = (profile.run.task, cfg.task, profile.run.strategy, cfg.eval_every > 0)
        assert library.find(name).read_text().count(f"encamp launch {name} --on HOST") == 2
    assert found == {
        "image-classifier": ("images", "images", "ddp", True),
        "regression": ("regression", "regression", "ddp", True),
    }


# --- those to begin with -----------------------------------------------------------------------------------


def test_a_new_profile_names_its_job_and_the_next_step(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "new", "mine"]) == 0
    said = capsys.readouterr().out
    assert f"{own}/mine.py" in said
    assert "encamp launch mine --on HOST" in said
    profile = schema.load(library.find("mine", own.parent / "config" / "profiles"))
    assert (profile.name, profile.run.task, profile.run.strategy) == ("mine", "mine.py", "ddp")
    assert project.folder_of(profile) == own
    text = (own.parent / "config" / "profiles" / "mine.toml").read_text()
    assert "@" not in text
    assert "fsdp+tp" in text
    assert main(["profiles", "check", "mine"]) == 0
    assert main(["profiles", "list"]) == 0
    assert "a plain regression" in capsys.readouterr().out


@pytest.mark.parametrize("example", starter.EXAMPLES)
def test_what_is_begun_with_trains_as_it_is(
    own: Path, train: Trainings, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profiles", "new", "mine", "--example", example, "--job", "my job.py"]) == 0
    profile = schema.load(library.find("mine", own.parent / "config" / "profiles"), ["train.steps=40"])
    reported = train(*options(profile), "--device", "cpu", "--log-every", "1", "--eval-every", "40")
    assert reported[40] < 0.95 * reported[1]
    assert "evaluation after step 40" in capsys.readouterr().out


@pytest.mark.parametrize("example", starter.EXAMPLES)
def test_what_is_optional_works_when_its_sign_is_taken_away(
    tmp_path: Path, train: Trainings, example: str
) -> None:
    whole, optional = starter.job_text(example).split("# What follows may be left out.")
    code, comment = [], True
    for commented in optional.splitlines()[1:]:
        line = commented.removeprefix("#").removeprefix(" ")
        comment = comment and not line.startswith(("def ", "TP_PLAN", "BLOCKS")) if line else True
        code.append(f"# {line}" if comment and line else line)
    (tmp_path / "job.py").write_text(whole + "\n".join(code) + "\n")
    task = contract.load(str(tmp_path / "job.py"))
    assert task.forward is not contract.default_forward
    assert all([task.build_optimizer, task.evaluate, task.collate, task.blocks, task.tp_plan])
    task_options = ("--task", str(tmp_path / "job.py"), "--sequence-length", "32", "--steps", "3")
    assert len(train(*task_options, *SHORT, "--eval-every", "3", "--eval-batches", "1")) == 3


@pytest.mark.torch
def test_the_starter_trains_under_strategies_that_take_models_apart(own: Path) -> None:
    assert main(["profiles", "new", "mine", "--example", "gpt"]) == 0
    words = ("--task", str(own / "mine.py"), "--sequence-length", "16", "--steps", "4", "--log-every", "1")
    samples = ("--global-batch", "8", "--micro-batch", "4")
    alone = reference(words[1], *words[2:], global_batch=8)
    for strategy in ("tp", "pp"):
        curves = together(2, train_rank, 2, own / strategy, (*words, *samples, "--strategy", strategy), 4)
        assert worst(curves[0], alone) < 2e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt"], "There is a shipped profile called gpt already"),
        (["mine"], "There is a profile of yours called mine already"),
        (["other"], "There is other.py already in this folder; nothing was written."),
        (["x/y"], "cannot be a profile's name"),
        (["x.toml"], "must not end in .toml"),
        (["new", "--job", "job.txt"], "a job file's name ends in .py"),
        (["new", "--job", "nowhere/job.py"], "there is no folder"),
        (["new", "--job", "folder.py"], "a job file's name ends in .py"),
    ],
)
def test_nothing_is_overwritten(
    own: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profiles", "new", "mine"]) == 0
    (own / "other.py").write_text("mine")
    (own / "folder.py").mkdir()
    before = {path: path.read_bytes() for path in own.parent.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["profiles", "new", *words]) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in own.parent.rglob("*") if path.is_file()} == before


def test_a_job_that_is_there_is_taken_as_it_is(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "other.py").write_text("mine")
    assert main(["profiles", "new", "new", "--job", "other.py"]) == 0
    assert "was there, and is as it was" in capsys.readouterr().out
    assert (own / "other.py").read_text() == "mine"


def test_a_profile_that_cannot_be_written_leaves_no_job_behind(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own.parent / "config").write_text("a file where the folder should be")
    assert main(["profiles", "new", "mine"]) == 1
    assert "could not be written" in capsys.readouterr().err
    assert list(own.iterdir()) == []


def test_odd_names_of_folders_are_quoted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = own / 'a "quoted" \\ folder\twith ünïcode'
    odd.mkdir()
    monkeypatch.chdir(odd)
    assert main(["profiles", "new", "mine"]) == 0
    profile = schema.load(library.find("mine", own.parent / "config" / "profiles"))
    assert project.folder_of(profile) == odd
