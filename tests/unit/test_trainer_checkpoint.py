"""Checkpoints on disk: which count, which are kept, and those that do not fit or cannot be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training import Trainings, job, records

from trainer.errors import CheckpointError

OPTIONS = ("--task", job("faults"), "--log-every", "100", "--steps")


ROOT = Path(__file__).parents[2]

HOLD = """
import sys
from pathlib import Path
from trainer.folder import CheckpointFolder
folder = CheckpointFolder(Path(sys.argv[1]))
folder.hold()
print("held", flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_newest_are_kept(train: Trainings) -> None:
    train(*OPTIONS, "7", "--checkpoint-every", "2", "--keep-checkpoints", "2")
    assert names(train.checkpoints) == ["step-6", "step-7"]
    train(*OPTIONS, "8", "--keep-checkpoints", "1")
    assert names(train.checkpoints) == ["step-8"]


def test_what_a_checkpoint_says_about_itself(train: Trainings) -> None:
    train(*OPTIONS, "3", "--seed", "5", "--micro-batch", "4")
    marker = json.loads((train.checkpoints / "step-3" / "complete.json").read_text())
    assert {key: marker[key] for key in ("step", "samples", "seed", "dataset_length", "world_size")} == {
        "step": 3, "samples": 12, "seed": 5, "dataset_length": 40, "world_size": 1,
    }  # fmt: skip
    assert marker["torch"] == torch.__version__


@pytest.mark.parametrize(
    "marker",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"step": 4}',
        b'{"step": 9, "samples": 1, "seed": 0, "dataset_length": 1}',
    ],
)
def test_an_incomplete_checkpoint_is_named_ignored_and_in_time_removed(
    train: Trainings, capsys: pytest.CaptureFixture[str], marker: bytes | None
) -> None:
    train(*OPTIONS, "4", "--checkpoint-every", "2")
    path = train.checkpoints / "step-4" / "complete.json"
    path.unlink()
    if marker is not None:
        path.write_bytes(marker)
    capsys.readouterr()
    train(*OPTIONS, "6", "--checkpoint-every", "3")
    said = capsys.readouterr().out
    assert f"ignoring {train.checkpoints}/step-4: it was not written to its end" in said
    assert f"resumed from {train.checkpoints}/step-2: going on with step 3" in said
    assert names(train.checkpoints) == ["step-2", "step-3", "step-6"]


def test_an_incomplete_checkpoint_of_the_same_step_is_written_anew(train: Trainings) -> None:
    left_over = train.checkpoints / "step-2"
    left_over.mkdir(parents=True)
    (left_over / "__7_0.distcp").write_bytes(b"half")
    train(*OPTIONS, "2")
    assert names(left_over) == [".metadata", "__0_0.distcp", "complete.json"]
    assert list(train(*OPTIONS, "3", "--log-every", "1")) == [3]


def test_other_files_in_the_folder_are_left_alone(train: Trainings) -> None:
    train.checkpoints.mkdir(parents=True)
    for name in ("step-x", "step-007", "notes.txt", "best"):
        (train.checkpoints / name).mkdir()
    train(*OPTIONS, "2", "--keep-checkpoints", "1")
    assert names(train.checkpoints) == ["best", "notes.txt", "step-007", "step-2", "step-x"]


def test_without_a_place_there_are_none(
    train: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("ENCAMP_RUN_DIR")
    monkeypatch.chdir(tmp_path)
    train(*OPTIONS, "2", "--checkpoint-every", "1")
    assert (
        "no checkpoints: neither --checkpoint-dir nor $ENCAMP_RUN_DIR says where to"
        in capsys.readouterr().out
    )
    assert not list(tmp_path.rglob("step-*"))


def test_the_options_of_the_new_run_hold(train: Trainings) -> None:
    train(*OPTIONS, "2", "--weight-decay", "0.5", "--learning-rate", "0.1", "--warmup-steps", "0")
    # Neither a step nor decay at a rate of 0: were the rate of the checkpoint used, the weights would move.
    train(*OPTIONS, "3", "--weight-decay", "0", "--learning-rate", "0")
    import job_faults  # type: ignore[import-not-found]

    after = {name: value.clone() for name, value in job_faults.MODELS[-1].state_dict().items()}
    shutil.rmtree(train.checkpoints / "step-3")
    with pytest.raises(ZeroDivisionError):
        train(*OPTIONS, "3", JOB_FAULT="raise", JOB_AT="1")
    for name, value in job_faults.MODELS[-1].state_dict().items():
        assert torch.equal(value, after[name])


def write_job(folder: Path, layers: str) -> str:
    text = Path(job("faults")).read_text()
    assert "nn.Linear(16, 1))" in text
    path = folder / "other.py"
    path.write_text(text.replace("nn.Linear(16, 1))", f"{layers})"))
    return str(path)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("nn.Linear(16, 2), nn.Linear(2, 1)", r"layers\.3\.weight is \(1, 16\) there and \(2, 16\) here"),
        ("nn.Linear(16, 1), nn.Linear(1, 1)", r"it has no layers\.4\.weight"),
        ("nn.Linear(16, 1, bias=False)", r"it has layers\.3\.bias, which this model lacks"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_by_the_first_difference(
    train: Trainings, tmp_path: Path, layers: str, said: str
) -> None:
    train(*OPTIONS, "2")
    with pytest.raises(CheckpointError, match=f"step-2 is a checkpoint of another model: {said}"):
        train("--task", write_job(tmp_path, layers), "--steps", "3")


@pytest.mark.parametrize(
    "spoil", ["cut the data", "cut the metadata", "remove the metadata", "remove the data"]
)
def test_a_checkpoint_that_cannot_be_read_is_told(train: Trainings, spoil: str) -> None:
    train(*OPTIONS, "2")
    path = train.checkpoints / "step-2" / (".metadata" if "metadata" in spoil else "__0_0.distcp")
    if "remove" in spoil:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"step-2 cannot be read: .*\nremove it, and training resumes"):
        train(*OPTIONS, "3")


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_checkpoint_folder_that_cannot_be_made_is_told_before_training(
    train: Trainings, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    said = f"no checkpoint can be written to {tmp_path / name}: .*Not a directory.*; set --checkpoint-dir to"
    with pytest.raises(CheckpointError, match=said):
        train(*OPTIONS, "2", "--checkpoint-dir", str(tmp_path / name))
    assert not any("loss" in entry for entry in records(train.rank_dir))


def test_going_back_to_an_older_one_sets_newer_ones_aside(
    train: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(*OPTIONS, "6", "--checkpoint-every", "2")
    monkeypatch.setenv("ENCAMP_RESUME_STEP", "2")
    assert list(train(*OPTIONS, "3", "--log-every", "1")) == [3]
    assert names(train.checkpoints) == ["step-2", "step-3", "step-4.aside", "step-6.aside"]
    monkeypatch.setenv("ENCAMP_RESUME_STEP", "0")
    assert list(train(*OPTIONS, "2", "--log-every", "1")) == [1, 2]
    monkeypatch.delenv("ENCAMP_RESUME_STEP")
    assert list(train(*OPTIONS, "3", "--log-every", "1")) == [3]
    before = names(train.checkpoints)
    monkeypatch.setenv("ENCAMP_RESUME_STEP", "1")
    with pytest.raises(CheckpointError, match="no complete checkpoint of step 1: there are those of 2, 3"):
        train(*OPTIONS, "4")
    assert names(train.checkpoints) == before, "and nothing was changed"


def test_two_runs_do_not_train_with_one_folder(train: Trainings, tmp_path: Path) -> None:
    """The second would delete what the first resumes from. When the first is over, its folder is free."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        options = ("--task", job("stack"), "--steps", "2", "--checkpoint-dir", str(folder))
        with pytest.raises(CheckpointError, match="another run is training with the checkpoints in"):
            train(*options)
        torch.distributed.destroy_process_group()
        holder.communicate(b"")
        assert sorted(train(*options)) == [1, 2]
    finally:
        holder.kill()
        holder.wait()
