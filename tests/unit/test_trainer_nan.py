"""Steps whose loss or gradients are not finite, when they are to be skipped: on one rank and on several."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import rank_training
from ranks import together
from training import Trainings, job, records, reference

from trainer.errors import NonFiniteError
from trainer.nonfinite import PATIENCE

QUICK = ("--steps", "9", "--warmup-steps", "2", "--learning-rate", "0.01", "--on-nan", "skip")
STACK = ("--task", job("spoiled"), *QUICK, "--global-batch", "12", "--micro-batch", "3")


def close(ours: dict[int, float], theirs: dict[int, float], but: set[int] | None = None) -> bool:
    steps = theirs.keys() - (but or set())
    return steps <= ours.keys() and all(abs(ours[step] - theirs[step]) < 2e-4 for step in steps)


@pytest.mark.usefixtures("late")
def test_a_skipped_step_changes_no_weight_and_training_goes_on(
    train: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = train(*STACK, JOB_BAD="3 5 6", JOB_MICRO="4")
    expected = reference(job("stack"), *QUICK, global_batch=12, skip=(3, 5, 6))
    assert close({step: loss for step, loss in ours.items() if loss != "nan"}, expected, {3, 5, 6})
    assert [step for step, loss in ours.items() if loss == "nan"] == [3, 5, 6]
    said = capsys.readouterr().out
    assert "the loss of step 3 is nan on rank 0: skipped, the weights stay as they were\n" in said
    assert said.count("skipped, the weights stay as they were") == 3
    last = [entry for entry in records(train.rank_dir) if "grad_norm" in entry][-1]
    assert (last["step"], last["skipped_steps"]) == (9, 3)
    assert (train.checkpoints / "step-9" / "complete.json").exists()


@pytest.mark.usefixtures("late")
def test_gradients_that_are_not_finite_are_skipped_too(
    train: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--task", job("faults"), *QUICK, "--micro-batch", "4")
    train(*options, JOB_FAULT="slope", JOB_AT="5")
    train(*options, "--steps", "12", JOB_FAULT="nothing", JOB_AT="2")
    said = capsys.readouterr().out
    assert "the gradients of step 5 are not finite, although the loss is on every rank: skipped" in said
    assert "the job's loss counted nothing in step 11, on any rank: skipped" in said
    assert all(value.isfinite().all() for value in sys.modules["job_faults"].MODELS[-1].state_dict().values())


@pytest.mark.usefixtures("late")
def test_a_run_does_not_skip_without_end(train: Trainings) -> None:
    bad = " ".join(map(str, range(4, 4 + PATIENCE)))
    options = (*STACK, "--steps", "30", "--checkpoint-every", "3")
    with pytest.raises(NonFiniteError) as caught:
        train(*options, JOB_BAD=f"2 {bad}", JOB_MICRO="4")
    said = str(caught.value)
    assert said.startswith(
        f"the loss of step {3 + PATIENCE} is nan on rank 0; that makes {PATIENCE} steps in a"
    )
    assert said.endswith("and the last checkpoint is that of step 12")
    assert records(train.rank_dir)[-1]["step"] == 3 + PATIENCE


NORMALIZED = """
import torch
from torch import nn

def build_model(cfg):
    global MODEL
    MODEL = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    return MODEL

def build_dataset(cfg, split):
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    x[7, 1] = float("inf")
    return [(row, row.nan_to_num(0, 0, 0).sum().view(1)) for row in x]

def loss(output, batch):
    return ((output - batch[1]) ** 2).sum(), len(output)
"""


@pytest.mark.usefixtures("late")
def test_running_means_do_not_keep_what_a_skipped_step_has_seen(train: Trainings, tmp_path: Path) -> None:
    path = tmp_path / "normalized.py"
    path.write_text(NORMALIZED)
    train("--task", str(path), *QUICK, "--micro-batch", "4")
    told = [entry for entry in records(train.rank_dir) if "skipped_steps" in entry]
    assert told[-1]["skipped_steps"] >= 1
    state = sys.modules["job_normalized"].MODEL.state_dict()
    assert all(value.isfinite().all() for value in state.values())
    assert state["0.num_batches_tracked"] == 9 - told[-1]["skipped_steps"]


# --- among ranks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "ranks", "micro"),
    [("ddp", 2, 2), ("fsdp", 2, 2), ("tp", 2, 4), ("pp", 2, 4)],
)
def test_all_ranks_skip_the_same_steps(strategy: str, ranks: int, micro: int, tmp_path: Path) -> None:
    bad = {"JOB_BAD": "3 6", "JOB_RANK": str(ranks - 1), "JOB_MICRO": str(micro)}
    options = (*STACK, "--strategy", strategy)
    trained = together(ranks, rank_training.train, ranks, tmp_path, options, bad)
    expected = reference(job("stack"), *QUICK, global_batch=12, skip=(3, 6))
    for rank in trained:
        assert not rank.error
        assert close({step: loss for step, loss in rank.losses.items() if loss != "nan"}, expected, {3, 6})
        assert f"the loss of step 3 is nan on rank {ranks - 1}: skipped" in rank.said
        assert rank.records[-1]["step"] == 9
        assert [entry for entry in rank.records if "skipped_steps" in entry][-1]["skipped_steps"] == 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rank_that_is_asked_to_stop_in_a_bad_step_is_heard(strategy: str, tmp_path: Path) -> None:
    environment = {"JOB_BAD": "3 4", "JOB_RANK": "1", "JOB_MICRO": "2", "JOB_STOP": "3"}
    options = (*STACK, "--strategy", strategy, "--checkpoint-dir", str(tmp_path / "checkpoints"))
    for rank in together(2, rank_training.train, 2, tmp_path, options, environment):
        assert not rank.error
        assert max(rank.losses) == 4  # asked in step 3, told to the others in step 4
        assert "asked to stop" in rank.said
        assert (tmp_path / "checkpoints" / "step-4" / "complete.json").exists()
