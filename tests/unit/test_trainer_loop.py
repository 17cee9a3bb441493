"""Training in one process: against the plainest loop, across interruptions, and where it must stop."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from training import Trainings, job, records, reference

from trainer import compiling
from trainer.config import parse
from trainer.errors import CheckpointError, NonFiniteError
from trainer.progress import Progress
from trainer.run import run
from trainer.stop import StoppedAtOnce, StopRequest
from trainer.world import World

QUICK = ("--steps", "12", "--warmup-steps", "3", "--learning-rate", "0.01", "--checkpoint-every", "0")


def close(ours: dict[int, float], theirs: dict[int, float], tolerance: float) -> bool:
    return ours.keys() == theirs.keys() and all(abs(ours[step] - theirs[step]) <= tolerance for step in ours)


@pytest.mark.parametrize(
    ("batch", "global_batch"),
    [
        pytest.param(("--micro-batch", "8"), 8, id="one micro-batch"),
        pytest.param(("--micro-batch", "4", "--accumulation", "3"), 12, id="accumulation"),
        pytest.param(("--micro-batch", "4", "--global-batch", "10"), 10, id="last micro-batch smaller"),
        pytest.param(("--micro-batch", "8", "--grad-clip", "0.05"), 8, id="clipped hard"),
        pytest.param(("--micro-batch", "8", "--grad-clip", "0"), 8, id="not clipped"),
        pytest.param(("--micro-batch", "64"), 64, id="more than the dataset holds"),
    ],
)
def test_the_losses_are_those_of_the_plainest_loop(
    train: Trainings,
    batch: tuple[str, ...],
    global_batch: int,
) -> None:
    ours = train("--task", job("ragged"), *QUICK, *batch)
    theirs = reference(job("ragged"), *QUICK, *batch, global_batch=global_batch)
    assert close(ours, theirs, 2e-5)
    assert ours[12] < ours[1] - 0.05


def test_bf16_follows_fp32(train: Trainings) -> None:
    options = ("--task", job("ragged"), "--micro-batch", "8", *QUICK)
    full = train(*options, "--checkpoint-dir", str(train.folder / "a"))
    half = train(*options, "--checkpoint-dir", str(train.folder / "b"), "--precision", "bf16")
    assert full != half
    assert close(full, half, 0.05)


def test_what_is_reported(train: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    train(
        "--task", job("faults"), "--steps", "7", "--log-every", "3", "--eval-every", "4", "--micro-batch", "4"
    )
    told = records(train.rank_dir)
    assert [entry["phase"] for entry in told] == [
        "init", "init", "train", "train", "train", "eval", "eval", "train", "train", "train", "save", "train",
    ]  # fmt: skip
    described = {
        "strategy": "ddp", "precision": "fp32", "ranks": 1,
        "micro_batch": 4, "accumulation": 1, "global_batch": 4,
        "mesh_data": 1, "mesh_tensor": 1, "mesh_pipeline": 1, "mesh_replicas": 1,
    }  # fmt: skip
    assert described.items() <= told[1].items()
    assert [entry["step"] for entry in told if "loss" in entry] == [1, 3, 6, 7]
    step = next(entry for entry in told if entry["step"] == 3)
    assert step["grad_norm"] > 0
    assert step["learning_rate"] == pytest.approx(3e-4 * 3 / 10)
    assert step["tokens_per_second"] == pytest.approx(4 / step["step_seconds"])
    assert 0 <= step["data_wait"] <= 1
    assert 1e7 < step["memory_bytes"] < 1e11
    evaluated = next(entry for entry in told if "eval_loss" in entry)
    assert evaluated["eval_loss"] > evaluated["eval_error"] > 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("40 samples; ddp on 1 rank (cpu), fp32, batch 4: 4 samples a rank, 4 at a time")
    assert said[1] == f"no checkpoint in {train.checkpoints}: starting at step 1"
    assert said[2].startswith("step 1/7  loss ")
    assert said[-2].startswith(f"saved {train.checkpoints}/step-7 in ")
    assert said[-1].startswith("finished after step 7, ")


# --- interruption ------------------------------------------------------------------------------------------

STEADY = ("--task", job("faults"), "--steps", "14", "--micro-batch", "3", "--accumulation", "2")


def test_a_resumed_run_is_the_uninterrupted_one(
    train: Trainings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = train(*STEADY, "--checkpoint-dir", str(train.folder / "whole"))
    # Two micro-batches a step: the ninth forward is in step 5, and the next step is the last.
    first = train(*STEADY, JOB_FAULT="stop", JOB_AT="9")
    assert list(first) == [1, 2, 3, 4, 5, 6]
    said = capsys.readouterr().out
    assert "asked to stop (SIGTERM): leaving with a checkpoint" in said
    assert "stopped as asked after step 6" in said
    rest = train(*STEADY)
    assert f"resumed from {train.checkpoints}/step-6: going on with step 7" in capsys.readouterr().out
    assert list(rest) == list(range(7, 15))
    assert first | rest == whole  # to the last bit: dropout, data order, learning rate and moments


def test_a_finished_run_has_nothing_left_to_do_until_steps_are_added(
    train: Trainings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train("--task", job("faults"), "--steps", "3")
    assert train("--task", job("faults"), "--steps", "3") == {}
    assert "3 of 3 steps are done: nothing is left to do" in capsys.readouterr().out
    assert list(train("--task", job("faults"), "--steps", "5")) == [4, 5]


def test_another_seed_is_told_on_resuming(
    train: Trainings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train("--task", job("faults"), "--steps", "2")
    train("--task", job("faults"), "--steps", "3", "--seed", "1")
    assert "seed or dataset are not those of the checkpoint" in capsys.readouterr().out


@pytest.mark.usefixtures("train")
def test_a_second_interrupt_does_not_wait_for_the_step() -> None:
    stop = StopRequest()
    assert not stop
    stop.listen()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop
    assert stop.signal == "SIGTERM"
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("early", [True, False])
def test_a_request_while_the_first_step_is_compiled_ends_it_at_once(early: bool) -> None:
    stop = StopRequest()
    stop.listen()
    if early:
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StoppedAtOnce), stop.at_once(True):
        assert not early
        os.kill(os.getpid(), signal.SIGTERM)
    with stop.at_once(False):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal == "SIGTERM"


def test_a_stop_in_the_compile_phase_leaves_without_a_step(
    train: Trainings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "check", lambda _device: None)
    monkeypatch.setattr(compiling, "compile_model", lambda _model, _task: None)
    assert train(*STEADY, "--compile", "yes", JOB_FAULT="stop", JOB_AT="1") == {}
    said = capsys.readouterr().out
    assert "compiling: step 1 comes when that is done" in said
    assert said.endswith("stopped as asked while step 1 was being compiled: no step is lost\n")
    assert not list(train.checkpoints.glob("step-*"))


# --- what must not reach the weights -----------------------------------------------------------------------


def weights() -> Any:
    """Of the newest model that the job with faults has built."""
    return sys.modules["job_faults"].MODELS[-1].state_dict()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan", "the loss of step 5 is nan on rank 0"),
        ("slope", "the gradients of step 5 are not finite, although the loss is on every rank"),
        ("nothing", "the job's loss counted nothing in step 5, on any rank"),
    ],
)
def test_a_spoiled_step_changes_nothing(train: Trainings, late: bool, fault: str, said: str) -> None:
    options = ("--task", job("faults"), "--steps", "9", "--micro-batch", "4", "--checkpoint-every", "2")
    with pytest.raises(NonFiniteError, match=said) as caught:
        train(*options, JOB_FAULT=fault, JOB_AT="5")
    assert str(caught.value).endswith(
        "the last checkpoint is that of step 4; to leave such steps out instead: --on-nan skip, or on_nan in "
        "[train]"
    )
    assert sorted(entry.name for entry in train.checkpoints.iterdir()) == ["step-2", "step-4"]
    if fault == "nan":
        assert records(train.rank_dir)[-1]["loss"] == "nan"
    left = {name: value.clone() for name, value in weights().items()}
    with pytest.raises(ZeroDivisionError):
        train(*options, JOB_FAULT="raise", JOB_AT="1")  # resumes from step 4 and gets no further
    for name, value in weights().items():
        assert torch.equal(value, left[name])


def test_exceptions_of_the_job_pass_through(train: Trainings) -> None:
    with pytest.raises(ZeroDivisionError, match="the job's own fault"):
        train("--task", job("faults"), "--steps", "9", JOB_FAULT="raise", JOB_AT="2")


# --- disks -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow beyond 2 KiB: writing fails as it does on a full disk.

    No longer than needed: the file that the tests' own output goes to is no exception.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_costs_checkpoints_but_not_the_training(
    train: Trainings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--task", job("faults"), "--steps", "5", "--checkpoint-every", "2", "--log-every", "5")
    with small_files(), pytest.raises(CheckpointError, match="step-5 could not be written"):
        train(*options)
    said = capsys.readouterr().out
    assert "no checkpoint at step 2, training goes on" in said
    assert "no checkpoint at step 4" in said  # or training is over before it fails
    assert list(train.checkpoints.iterdir()) == []


def test_a_rank_folder_that_is_missing_costs_the_graphs_but_not_the_training(
    train: Trainings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_RANK_DIR", str(train.folder / "nowhere"))
    run(parse(["--task", job("faults"), "--steps", "3"]))
    output = capsys.readouterr()
    assert "finished after step 3" in output.out
    assert output.err.count("no more progress is recorded: [Errno 2]") == 1


def test_a_full_disk_costs_the_graphs_but_not_the_training(
    train: Trainings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train.count += 1
    train.rank_dir.mkdir()
    (train.rank_dir / "progress.jsonl").symlink_to("/dev/full")
    monkeypatch.setenv("ENCAMP_RANK_DIR", str(train.rank_dir))
    run(parse(["--task", job("faults"), "--steps", "3"]))
    output = capsys.readouterr()
    assert "finished after step 3" in output.out
    assert output.err.count("no more progress is recorded: [Errno 28]") == 1


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_lines_and_graphs_but_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "progress.jsonl").symlink_to("/dev/full")
    monkeypatch.setenv("ENCAMP_RANK_DIR", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", FullDisk())
        patch.setattr(sys, "stderr", FullDisk())
        progress = Progress(cast(World, SimpleNamespace(first=True)))
        progress.say("step 1")
        progress.record("train", 1, loss=1.0)
        progress.record("train", 2, loss=1.0)
        progress.close()
