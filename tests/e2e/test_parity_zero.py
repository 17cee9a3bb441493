"""ZeRO learns what one process learns, goes on from the others' checkpoints, and they from its.

Many trainings follow each other in one group of ranks: loading DeepSpeed takes longer than they do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_training
from parity import BATCHES, QUICK, RAGGED, STEPS, WHOLE, train, worst
from ranks import together
from training import job, records, reference

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

DEADLINE = 200
"""Seconds for all trainings of a group."""

WAYS: dict[int, list[tuple[str, tuple[str, ...], str]]] = {
    1: [("zero1", (), RAGGED), ("zero3", (), RAGGED)],
    2: [
        ("zero1", (), RAGGED),
        ("zero1", (), WHOLE),
        ("zero1", ("--offload", "cpu"), RAGGED),
        ("zero2", (), RAGGED),
        ("zero2", ("--bucket-mb", "1"), WHOLE),
        ("zero2", ("--offload", "cpu"), RAGGED),
        ("zero3", (), RAGGED),
        ("zero3", (), WHOLE),
        ("zero3", ("--offload", "cpu"), RAGGED),
    ],
    4: [("zero1", (), RAGGED), ("zero2", (), RAGGED), ("zero3", (), RAGGED)],
}
EVERY = 2
RANKS = (4, 2, 1, 2)
CHAINS = [
    ("zero3", "ddp", "zero1", "zero2"),
    ("hsdp", "zero2", "zero3", "pp"),
    ("zero2", "zero3", "fsdp", "tp"),
    ("zero1", "tp", "zero2", "zero3"),
    ("fsdp+tp", "zero1", "ddp", "fsdp"),
]
"""Who trains for EVERY steps in turn, on that many RANKS."""


def several(
    rank: int, ranks: int, folder: Path, runs: list[tuple[str, tuple[str, ...], int]]
) -> list[dict[int, float]]:
    """Train as each of `runs` says: a name, options and a number of steps. Returns the losses of each."""
    return [train(rank, ranks, folder / name, options, steps) for name, options, steps in runs]


def options_of(strategy: str, more: tuple[str, ...], batch: str) -> tuple[str, ...]:
    return (
        *("--task", job("stack"), "--strategy", strategy, *more),
        *(*QUICK, *BATCHES[batch][0], "--eval-every", "7"),
    )


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 4))])
def test_the_losses_are_those_of_one_process(ranks: int, tmp_path: Path) -> None:
    expected = {
        name: reference(job("stack"), *QUICK, *options, global_batch=size)
        for name, (options, size) in BATCHES.items()
    }
    runs = [(str(number), options_of(*way), STEPS) for number, way in enumerate(WAYS[ranks])]
    curves = together(ranks, several, ranks, tmp_path, runs, deadline=DEADLINE)
    for number, (strategy, more, batch) in enumerate(WAYS[ranks]):
        way = (strategy, ranks, *more, batch)
        assert worst(curves[0][number], expected[batch]) < 2e-4, way
        assert all(curve[number] == curves[0][number] for curve in curves), way
        entries = records(tmp_path / str(number) / "rank-0")
        shares = [entry["eval_right"] for entry in entries if "eval_right" in entry]
        assert len(shares) == 2 and all(0 <= share <= 1 for share in shares), way


def test_each_goes_on_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    options = ("--task", job("stack"), "--steps", str(EVERY * len(RANKS)), "--warmup-steps", "2")
    options += ("--learning-rate", "0.01", "--log-every", "1", "--global-batch", "12", "--micro-batch", "3")
    expected = reference(job("stack"), *options, global_batch=12)
    for link, ranks in enumerate(RANKS):
        runs = []
        for number, chain in enumerate(CHAINS):
            where = ("--checkpoint-dir", str(tmp_path / str(number) / "checkpoints"))
            runs.append((str(number), (*options, "--strategy", chain[link], *where), EVERY))
        curves = together(ranks, several, ranks, tmp_path, runs, deadline=DEADLINE)[0]
        steps = range(link * EVERY + 1, (link + 1) * EVERY + 1)
        for chain, curve in zip(CHAINS, curves, strict=True):
            assert worst(curve, {step: expected[step] for step in steps}) < 1e-5, (chain, link)


def oddments(rank: int, folder: Path) -> dict[str, Any]:
    """What the job of that name learns on two ranks, by strategy: in one go, and in two parts."""
    options = ("--task", job("oddments"), "--steps", "6", "--warmup-steps", "0", "--log-every", "1")
    options += ("--learning-rate", "0.05", "--global-batch", "16", "--micro-batch", "4", "--eval-every", "6")
    curves: dict[str, Any] = {}
    for strategy in ("ddp", "zero1", "zero3"):
        curves[strategy] = train(rank, 2, folder / strategy, (*options, "--strategy", strategy), 9)
    for first, second in (("zero3", "ddp"), ("ddp", "zero2"), ("zero1", "zero3")):
        home = folder / f"{first}-{second}"
        more = ("--checkpoint-dir", str(home / "checkpoints"), "--strategy")
        curve = train(rank, 2, home, (*options, *more, first), 3)
        curves[home.name] = curve | train(rank, 2, home, (*options, *more, second), 9)
    return curves


@pytest.mark.slow
def test_shared_and_frozen_weights_running_means_and_momentum(tmp_path: Path) -> None:
    curves = together(2, oddments, tmp_path, deadline=DEADLINE)[0]
    evaluations = {}
    for name, curve in curves.items():
        assert worst(curve, curves["ddp"]) < 1e-5, name
        evaluations[name] = [e["eval_loss"] for e in records(tmp_path / name / "rank-0") if "eval_loss" in e]
    assert all(found == pytest.approx(evaluations["ddp"], abs=1e-5) for found in evaluations.values())
    assert len(evaluations["ddp"]) == 1


PRACTICES: dict[tuple[str, ...], tuple[list[tuple[str, ...]], float]] = {
    ("--precision", "bf16"): ([("zero1",), ("zero3",)], 5e-3),
    ("--precision", "fp16"): ([("zero2",), ("zero3", "--offload", "cpu")], 5e-3),
    ("--activation-checkpointing", "yes"): ([("zero2",), ("zero3",)], 2e-4),
}
"""Options, what is trained with them besides ddp, and how near to that it has to stay."""


def practised(rank: int, folder: Path) -> dict[tuple[str, ...], list[dict[int, float]]]:
    batches = ("--task", job("stack"), *QUICK, *BATCHES[RAGGED][0])
    return {
        practice: [
            rank_training.train(rank, 2, folder, (*batches, *practice, "--strategy", *words)).losses
            for words in (("ddp",), *ways)
        ]
        for practice, (ways, _) in PRACTICES.items()
    }


@pytest.mark.slow
def test_arithmetic_and_memory_as_under_ddp(tmp_path: Path) -> None:
    trained = together(2, practised, tmp_path, deadline=DEADLINE)[0]
    for practice, (ways, near) in PRACTICES.items():
        expected, *found = trained[practice]
        for curve, words in zip(found, ways, strict=True):
            assert worst(curve, expected) < near, (practice, words)


BAD = {"JOB_BAD": "3 5", "JOB_MICRO": "2", "JOB_RANK": "1"}
SPOILED = ("--task", job("spoiled"), *QUICK, "--steps", "7", "--global-batch", "12", "--micro-batch", "3")
STAGES = [("zero1", ()), ("zero2", ("--offload", "cpu")), ("zero3", ()), ("zero3", ("--offload", "cpu"))]


def spoiled(rank: int, folder: Path) -> list[rank_training.Trained]:
    """Under each of STAGES: steps that are skipped, then one at which training stops."""
    found = []
    for on_nan in ("skip", "stop"):
        for number, (strategy, more) in enumerate(STAGES):
            words = (*SPOILED, "--strategy", strategy, *more, "--on-nan", on_nan)
            found.append(rank_training.train(rank, 2, folder / f"{on_nan}{number}", words, BAD))
    return found


@pytest.mark.slow
def test_a_spoiled_step_leaves_nothing_behind(tmp_path: Path) -> None:
    expected = reference(job("stack"), *QUICK, "--steps", "7", global_batch=12, skip=(3, 5))
    for runs in together(2, spoiled, tmp_path, deadline=DEADLINE):
        for run, (strategy, more) in zip(runs, STAGES, strict=False):
            good = {step: loss for step, loss in run.losses.items() if loss != "nan"}
            assert good.keys() == {1, 2, 4, 6, 7}, (strategy, more)
            assert worst(good, {step: expected[step] for step in good}) < 2e-4, (strategy, more)
        for run in runs[len(STAGES) :]:
            assert run.error.startswith("the loss of step 3 is nan on rank 1; stopped before"), run.error
            assert all(abs(weight) < 1e6 for weight in run.weights)
