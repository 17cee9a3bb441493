"""fp16 and the scale of its loss. A CPU computes in it too, slowly, and is only refused to users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_training
import torch
from ranks import together
from training import Trainings, job, records

from trainer import loss_scale, precision
from trainer.errors import NonFiniteError, UsageError
from trainer.loss_scale import BACKOFF, FIRST_BACKOFF, GROWTH_STEPS, LARGEST, SMALLEST, START, LossScale
from trainer.strategies import base

STEPS = 10
QUICK = ("--steps", str(STEPS), "--warmup-steps", "2", "--learning-rate", "0.01")
STACK = ("--task", job("stack"), *QUICK, "--global-batch", "12", "--micro-batch", "3")


@pytest.fixture
def let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "check", lambda *_: None)


# --- the scale ---------------------------------------------------------------------------------------------


def feed(scaler: LossScale, *steps: str) -> float:
    for step in steps:
        scaler.update(torch.tensor(step != "nan"), torch.tensor(step == "good"))
    return float(scaler.scale)


def test_the_scale_falls_in_large_steps_until_it_fits_and_in_small_ones_after() -> None:
    scaler = LossScale(torch.device("cpu"))
    assert feed(scaler, "over", "over") == START * FIRST_BACKOFF**2
    assert feed(scaler, "good", "over") == START * FIRST_BACKOFF**2 * BACKOFF
    assert feed(scaler, "nan") == START * FIRST_BACKOFF**2 * BACKOFF


def test_the_scale_rises_after_many_good_steps_in_a_row() -> None:
    scaler = LossScale(torch.device("cpu"))
    most = ["good"] * (GROWTH_STEPS - 1)
    assert feed(scaler, *most) == START
    assert feed(scaler, "over", *most) == START / 2
    assert feed(scaler, "nan", "good") == START  # a loss that was no number says nothing about the scale
    assert feed(scaler, *most) == START
    assert feed(scaler, "good") == START * 2


def test_the_scale_stays_within_bounds() -> None:
    scaler = LossScale(torch.device("cpu"))
    assert feed(scaler, *["over"] * 40) == SMALLEST
    scaler.good_steps.fill_(GROWTH_STEPS - 1)
    scaler.scale.fill_(LARGEST)
    assert feed(scaler, "good") == LARGEST


# --- one rank ----------------------------------------------------------------------------------------------


def test_fp16_on_a_cpu_is_refused(train: Trainings) -> None:
    with pytest.raises(UsageError, match="--precision fp16 is for GPUs, and this is a CPU; use bf16 or fp32"):
        train(*STACK, "--precision", "fp16")


@pytest.mark.usefixtures("let_through", "late")
def test_fp16_finds_its_scale_and_learns(train: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    full = train(*STACK, "--checkpoint-dir", str(train.folder / "a"))
    half = train(*STACK, "--checkpoint-dir", str(train.folder / "b"), "--precision", "fp16")
    told = [entry for entry in records(train.rank_dir) if "loss_scale" in entry]
    assert [entry["step"] for entry in told] == list(range(1, STEPS + 1))
    over = told[-1]["overflowed_steps"]
    assert told[-1]["loss_scale"] == START * FIRST_BACKOFF**over
    said = capsys.readouterr().out
    assert said.count("; skipped, and the scale is lowered") == over >= 1
    assert f"step 1: gradients too large for fp16 at a loss scale of {START:g}; skipped" in said
    assert half[1] == pytest.approx(full[1], abs=0.01)
    assert half[STEPS] == pytest.approx(full[STEPS - over], abs=0.15)
    assert half[STEPS] < half[1] - 0.2


@pytest.mark.usefixtures("let_through")
def test_a_resumed_run_goes_on_with_its_scale(train: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--task", job("faults"), "--steps", "12", "--micro-batch", "4", "--precision", "fp16")
    options += ("--learning-rate", "0.01")
    whole = train(*options, "--checkpoint-dir", str(train.folder / "whole"))
    first = train(*options, JOB_FAULT="stop", JOB_AT="6")
    capsys.readouterr()
    rest = train(*options)
    assert "resumed from" in capsys.readouterr().out
    assert first | rest == whole
    assert records(train.rank_dir)[-1]["step"] == 12


@pytest.mark.usefixtures("let_through")
def test_a_run_in_another_precision_goes_on_from_there(train: Trainings) -> None:
    options = ("--task", job("stack"), "--micro-batch", "6", "--learning-rate", "0.01")
    train(*options, "--steps", "3")
    assert list(train(*options, "--steps", "6", "--precision", "fp16")) == [4, 5, 6]
    assert list(train(*options, "--steps", "8")) == [7, 8]


@pytest.mark.usefixtures("let_through", "late")
def test_gradients_that_fit_at_no_scale_end_the_run(
    train: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "SMALLEST", START)
    options = ("--task", job("faults"), "--steps", "12", "--micro-batch", "4", "--precision", "fp16")
    with pytest.raises(NonFiniteError) as caught:
        train(*options, JOB_FAULT="slope", JOB_AT="5")
    assert "gradients of step" in str(caught.value)
    assert "use bf16 or fp32, or a lower learning rate" in str(caught.value)


@pytest.mark.usefixtures("let_through", "late")
@pytest.mark.parametrize("fault", ["nan", "nothing"])
def test_a_loss_that_is_no_number_is_not_for_being_scaled(train: Trainings, fault: str) -> None:
    options = ("--task", job("faults"), "--steps", "12", "--micro-batch", "4", "--precision", "fp16")
    with pytest.raises(NonFiniteError, match=r"step 5.*; stopped before it reached the weights"):
        train(*options, JOB_FAULT=fault, JOB_AT="5")


# --- among ranks -------------------------------------------------------------------------------------------


def three_ways(rank: int, ranks: int, folder: Path, options: tuple[str, ...]) -> list[Any]:
    """Train in fp32, in fp32 with a scaled loss, and in fp16."""
    plain = rank_training.train(rank, ranks, folder, options)
    half = rank_training.train(rank, ranks, folder, (*options, "--precision", "fp16"))
    base.scaler = lambda _, device: LossScale(device)
    return [plain, rank_training.train(rank, ranks, folder, options), half]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("dp", 1), ("ddp", 2), ("fsdp", 2), ("hsdp", 4), ("tp", 2), ("fsdp+tp", 4), ("pp", 2)],
)
def test_a_scaled_loss_changes_nothing_in_fp32_and_learns_in_fp16(
    strategy: str, ranks: int, tmp_path: Path
) -> None:
    options = (*STACK, "--strategy", strategy, "--grad-clip", "0.3")
    trained = together(ranks, three_ways, ranks, tmp_path, options)
    for plain, scaled, half in trained:
        assert not plain.error + scaled.error + half.error
        # To the last bit: scales are powers of two, and nothing gets lost in fp32.
        assert plain.losses == scaled.losses
        assert plain.weights == scaled.weights
        norms = [[entry.get("grad_norm") for entry in way.records] for way in (plain, scaled)]
        assert norms[0] == norms[1]
        assert scaled.records[-1]["loss_scale"] == START
        last = half.records[-1]
        assert 1 <= last["overflowed_steps"] <= 3
        assert last["loss_scale"] < START
        assert half.losses == trained[0][2].losses
        assert half.losses[STEPS] < half.losses[1] - 0.15
