"""The trainer under real torchrun on one host.

Each run costs some seconds, so each of these tests looks at many things.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.torchruns import Torchrun
from training import Trainings, job, losses, records, reference
from waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

QUICK = ("--steps", "14", "--warmup-steps", "3", "--learning-rate", "0.01", "--log-every", "1")


class Launcher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[Torchrun] = []

    def __call__(self, ranks: int, *options: str, **environment: str) -> Torchrun:
        self.runs.append(Torchrun(self.folder / f"{len(self.runs)}", ranks, *options, **environment))
        return self.runs[-1]


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for run in launcher.runs:
        run.end()


def worst(ours: dict[int, float], theirs: dict[int, float]) -> float:
    assert ours.keys() == theirs.keys()
    return max(abs(ours[step] - theirs[step]) for step in ours)


@pytest.mark.parametrize(
    ("batch", "global_batch"),
    [
        pytest.param(("--micro-batch", "6"), 12, id="one micro-batch"),
        pytest.param(("--micro-batch", "4", "--global-batch", "20"), 20, id="accumulation, the last smaller"),
    ],
)
def test_two_ranks_learn_what_one_process_learns(
    torchrun: Launcher, batch: tuple[str, ...], global_batch: int
) -> None:
    """Samples of different lengths, shuffled across epochs, clipped: the curve of the plainest loop."""
    options = ("--task", job("ragged"), *QUICK, *batch, "--grad-clip", "0.5")
    run = torchrun(2, *options).finish()
    expected = reference(job("ragged"), *options[2:], global_batch=global_batch)
    assert losses(run.rank(0)) == losses(run.rank(1))
    assert worst(losses(run.rank(0)), expected) < 2e-4
    assert expected[14] < expected[1] - 0.05
    for rank in (0, 1):
        assert "ddp on 2 ranks (cpu), fp32" in run.log(rank)
        assert "finished after step 14" in run.log(rank)
        assert json.loads((run.rank(rank) / "exit.json").read_text())["code"] == 0


def test_a_stopped_run_resumes_where_it_was(torchrun: Launcher) -> None:
    """SIGTERM to torchrun: every rank leaves at the same step with a checkpoint and status 0."""
    options = (
        *("--task", job("faults"), "--micro-batch", "3", "--accumulation", "2", "--log-every", "1"),
        *("--steps", "150", "--workers", "1", "--checkpoint-every", "0"),
    )
    run = torchrun(2, *options)
    wait_until(lambda: run.step() >= 5, 60, "the fifth step")
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait()  # torchrun's own status is a failure; the ranks know better
    first, other = losses(run.rank(0)), losses(run.rank(1))
    stopped = max(first)
    assert 5 <= stopped < 150
    assert first == other
    for rank in (0, 1):
        assert json.loads((run.rank(rank) / "exit.json").read_text())["code"] == 0
        assert "asked to stop (" in run.log(rank)
        assert f"stopped as asked after step {stopped}" in run.log(rank)
        assert "Traceback" not in run.log(rank)
    assert "asked to stop (SIGTERM)" in run.log(0) + run.log(1)

    # A newer one that was not written to its end.
    checkpoints = torchrun.folder / "run" / "checkpoints"
    shutil.copytree(checkpoints / f"step-{stopped}", checkpoints / "step-149")
    (checkpoints / "step-149" / "complete.json").unlink()
    rest = torchrun(2, *options).finish()
    assert f"ignoring {checkpoints}/step-149: it was not written to its end" in rest.log(0)
    assert f"resumed from {checkpoints}/step-{stopped}: going on with step {stopped + 1}" in rest.log(1)
    whole = torchrun(2, *options, "--checkpoint-dir", str(torchrun.folder / "whole")).finish()
    assert first | losses(rest.rank(0)) == losses(whole.rank(0))  # to the last bit


def test_another_number_of_ranks_goes_on_with_the_same_curve(torchrun: Launcher, train: Trainings) -> None:
    options = ("--task", job("ragged"), "--global-batch", "12", "--micro-batch", "6", *QUICK)
    expected = reference(job("ragged"), *options, global_batch=12)
    first = torchrun(2, *options, JOB_STOP_AT="6").finish()
    run = losses(first.rank(0))
    assert list(run) == list(range(1, 8))
    rest = train(*options, "--checkpoint-dir", str(torchrun.folder / "run" / "checkpoints"))
    assert list(rest) == list(range(8, 15))
    assert worst(run | rest, expected) < 2e-4


def test_a_loss_that_is_not_a_number_stops_all_ranks_and_names_the_one(torchrun: Launcher) -> None:
    options = ("--task", job("faults"), "--micro-batch", "3", "--steps", "9", "--checkpoint-every", "2")
    run = torchrun(2, *options, JOB_FAULT="nan", JOB_AT="4", JOB_RANK="1")
    assert run.wait() != 0
    said = "trainer: error: the loss of step 4 is nan on rank 1; stopped before it reached the weights"
    for rank in (0, 1):
        assert run.log(rank).count(said) == 1
        assert "Traceback" not in run.log(rank)
        assert json.loads((run.rank(rank) / "error.json").read_text())["message"].startswith(said)
        assert records(run.rank(rank))[-1]["loss"] == "nan"
    checkpoints = torchrun.folder / "run" / "checkpoints"
    assert [entry.name for entry in checkpoints.iterdir()] == ["step-2"]
    assert (checkpoints / "step-2" / "complete.json").exists()


def test_gpt_on_the_hosts_own_sources(torchrun: Launcher) -> None:
    """The shipped job in bf16, with evaluations."""
    options = ("--size", "tiny", "--sequence-length", "32", "--micro-batch", "4", "--steps", "30")
    run = torchrun(
        2, *options, "--learning-rate", "0.01", "--precision", "bf16", "--eval-every", "15"
    ).finish()
    told = losses(run.rank(0))
    assert told[30] < told[1] - 1
    assert [entry["step"] for entry in records(run.rank(1)) if "eval_loss" in entry] == [15, 30]
    assert (torchrun.folder / "home" / "data").is_dir()


def test_a_rank_that_fails_alone_ends_the_job(torchrun: Launcher) -> None:
    options = ("--task", job("faults"), "--micro-batch", "3", "--steps", "900", "--checkpoint-every", "0")
    run = torchrun(2, *options, JOB_FAULT="raise", JOB_AT="4", JOB_RANK="1")
    assert run.wait() == 1
    assert "ZeroDivisionError: the job's own fault" in run.log(1)
    assert not list((torchrun.folder / "run").rglob("complete.json"))
