"""tf-mirrored learns what a plain loop learns, on two parts of the CPU, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_training import Trainings, job, losses, records, reference, worst

from trainer.batches import Order
from trainer.errors import NonFiniteError
from trainer.schedule import learning_rate_share
from trainer.tasks.gpt_size import SIZES

pytestmark = pytest.mark.heavy

QUICK = ("--steps", "20", "--warmup-steps", "3", "--learning-rate", "0.01")
MARKS = ("--task", job("marks"), *QUICK)
WHOLE = ("--global-batch", "12", "--micro-batch", "12")
RAGGED = ("--global-batch", "20", "--micro-batch", "4", "--grad-clip", "0.3")


@pytest.mark.parametrize(
    ("batches", "size", "more"),
    [
        (WHOLE, 12, ()),
        (RAGGED, 20, ("--eval-every", "7", "--workers", "2")),
        (RAGGED, 20, ("--compile", "yes")),
    ],
    ids=["one micro-batch", "accumulated, ragged, clipped", "the same, compiled"],
)
def test_the_losses_are_those_of_a_plain_loop(
    batches: tuple[str, ...], size: int, more: tuple[str, ...], train: Trainings
) -> None:
    ours = train(*MARKS, *batches, *more)
    assert worst(ours, reference(job("marks"), *QUICK, *batches, global_batch=size)) < 2e-4
    assert sum(ours[step] for step in (18, 19, 20)) < sum(ours[step] for step in (1, 2, 3)) - 0.6
    said = records(train.rank_dir)
    first = next(entry for entry in said if "parameters" in entry)
    assert (first["global_batch"], first["mesh_data"], first["ranks"]) == (size, 2, 1)
    assert sum("eval_right" in entry for entry in said) == (2 if "--eval-every" in more else 0)


def test_bf16_keeps_the_weights_in_fp32(train: Trainings) -> None:
    ours = train(*MARKS, *RAGGED, "--precision", "bf16")
    assert 0 < worst(ours, reference(job("marks"), *QUICK, *RAGGED, global_batch=20)) < 0.05
    with np.load(train.checkpoints / "step-20" / "state.npz") as state:
        assert {state[name].dtype.name for name in state.files} == {"float32", "int64"}


@pytest.mark.parametrize("name", ["marks", "stateful"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name: str, train: Trainings) -> None:
    options = ("--task", job(name), *QUICK, "--micro-batch", "3", "--accumulation", "2")
    whole = train(*options, "--checkpoint-dir", str(train.folder / "other"))
    before = train(*options, "--checkpoint-every", "4", stop_at=7)
    assert list(before) == list(range(1, 9))
    assert sorted(path.name for path in train.checkpoints.iterdir()) == ["step-4", "step-8"]
    marker = json.loads((train.checkpoints / "step-8" / "complete.json").read_text())
    assert (marker["step"], marker["samples"], marker["framework"]) == (8, 96, "tensorflow")
    after = train(*options)
    assert list(after) == list(range(9, 21))
    assert worst(before | after, whole) < 1e-6
    assert train(*options) == {}


def test_a_loss_that_is_no_number_stops_before_the_weights(train: Trainings) -> None:
    with pytest.raises(NonFiniteError, match=r"the loss of step \d+ is nan on replica [01]; stopped before"):
        train(*MARKS, *RAGGED, "--checkpoint-every", "1", JOB_SPOILED=str(Order(53, 0)[25]))
    (path,) = train.checkpoints.iterdir()
    assert path.name == "step-1"
    with np.load(path / "state.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)


@pytest.mark.parametrize("batches", [WHOLE, RAGGED])
def test_a_bad_step_can_be_skipped(batches: tuple[str, ...], train: Trainings) -> None:
    said = train(*MARKS, *batches, "--on-nan", "skip", JOB_SPOILED="7")
    bad = [step for step, loss in said.items() if loss == "nan"]
    assert 1 <= len(bad) < 10
    assert records(train.rank_dir)[-3]["skipped_steps"] == len(bad)
    with np.load(train.checkpoints / "step-20" / "state.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)
        assert state["optimizer/updates"] == 20 - len(bad)


def test_training_ends_when_every_step_is_bad(train: Trainings) -> None:
    with pytest.raises(NonFiniteError, match="that makes 10 steps in a row that were skipped"):
        train(*MARKS, "--on-nan", "skip", JOB_SPOILED="all")


def test_a_job_may_bring_its_optimizer(train: Trainings) -> None:
    options = ("--task", job("own_optimizer"), *QUICK, "--warmup-steps", "0", "--grad-clip", "0")
    ours = train(*options, "--global-batch", "20", "--micro-batch", "4", JOB_OPTIMIZER="1")
    assert worst(ours, sgd(20, global_batch=20)) < 2e-4
    assert ours[20] < 0.5 * ours[1]


def test_a_plain_module_trains_too(train: Trainings) -> None:
    options = ("--task", job("own_optimizer"), *QUICK, "--global-batch", "40", "--learning-rate", "0.1")
    ours = train(*options, JOB_MODULE="1")
    assert ours[20] < 0.5 * ours[1]
    with np.load(train.checkpoints / "step-20" / "state.npz") as state:
        assert {"model/slope", "optimizer/slope/exp_avg", "optimizer/updates"} <= set(state.files)
    train_again = train(*options, "--checkpoint-dir", str(train.folder / "other"))
    assert worst(ours, train_again) < 2e-4


def test_gpt_learns_within_twenty_steps(train: Trainings, tmp_path: Path) -> None:
    ours = train("--task", "gpt", *QUICK, "--sequence-length", "32", "--micro-batch", "4")
    assert ours[20] < ours[1] - 1
    (count,) = (entry["parameters"] for entry in records(train.rank_dir) if "parameters" in entry)
    size = SIZES["tiny"]
    layer = 12 * size.width**2 + 2 * size.width
    assert count == size.layers * layer + (2 * 256 + 32 + 1) * size.width
    assert losses(tmp_path / "rank-1") == ours


def sgd(steps: int, *, global_batch: int) -> dict[int, float]:
    """The losses of the line under SGD with momentum, in NumPy."""
    random = np.random.default_rng(3)
    points: Any = random.normal(size=(40, 4))
    order = Order(40, 0)
    slope, speed = np.zeros(4), np.zeros(4)
    result = {}
    for step in range(1, steps + 1):
        x = points[[order[n] for n in range((step - 1) * global_batch, step * global_batch)]]
        miss = x @ slope - x.sum(1)
        rate = 0.01 * learning_rate_share(step, warmup=0, steps=steps)
        speed = 0.5 * speed - rate * 2 * (miss[:, None] * x).mean(0)
        slope = slope + speed
        result[step] = float((miss**2).mean())
    return result
