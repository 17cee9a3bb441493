"""Gradients are clipped by the norm of all of them, whoever holds them, as one process would clip them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_training
import torch
from ranks import together
from training import job

from trainer import contract
from trainer.batches import Order
from trainer.config import parse
from trainer.schedule import learning_rate_share

STEPS = 3
OPTIONS = ("--task", job("descent"), "--steps", str(STEPS), "--warmup-steps", "0", "--learning-rate", "2")
BATCHES = [(20, 8, 1, "0.4"), (12, 5, 2, "0.02"), (4, 1, 3, "0.3"), (28, 3, 4, "0")]
"""Global batch, micro-batch, seed, and how long the gradients may be; samples have different lengths."""
CUT = [(20, 5, 1, "0.4"), (12, 3, 2, "0.02"), (4, 1, 3, "0.3")]
"""The same for a pipeline, whose micro-batches are of one size."""

Curve = list[tuple[float, float]]
"""Loss and norm of each step."""


def words(global_batch: int, micro: int, seed: int, clip: str) -> tuple[str, ...]:
    sizes = ("--global-batch", str(global_batch), "--micro-batch", str(micro))
    return (*OPTIONS, *sizes, "--seed", str(seed), "--grad-clip", clip)


def alone(options: tuple[str, ...]) -> Curve:
    """What one process finds, with the whole batch at once."""
    cfg = parse([*options])
    task = contract.load(cfg.task)
    torch.manual_seed(cfg.seed)
    model = task.build_model(cfg)
    dataset = task.build_dataset(cfg, "train")
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.learning_rate)
    order, size = Order(len(dataset), cfg.seed), cfg.global_batch or 0
    curve = []
    for step in range(STEPS):
        batch = [dataset[order[sample]] for sample in range(step * size, (step + 1) * size)]
        columns = torch.utils.data.default_collate(batch)
        total, count = task.loss(model(columns[0]), columns)
        optimizer.zero_grad()
        (total / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or float("inf"))
        curve.append(((total / count).item(), norm.item()))
        for group in optimizer.param_groups:
            group["lr"] = cfg.learning_rate * learning_rate_share(step + 1, warmup=0, steps=STEPS)
        optimizer.step()
    return curve


def curves(rank: int, ranks: int, folder: Path, runs: list[tuple[str, ...]]) -> list[Curve]:
    """What the ranks find together."""
    found = []
    for options in runs:
        trained: Any = rank_training.train(rank, ranks, folder, options)
        entries = [entry for entry in trained.records if "grad_norm" in entry]
        found.append([(entry["loss"], entry["grad_norm"]) for entry in entries])
    return found


@pytest.mark.parametrize(
    ("strategy", "ranks", "batches"),
    [
        ("ddp", 2, BATCHES),
        ("fsdp", 2, BATCHES),
        ("hsdp", 4, BATCHES),
        ("tp", 2, BATCHES),
        ("fsdp+tp", 4, BATCHES),
        ("pp", 2, CUT),
    ],
)
def test_the_norm_is_that_of_all_gradients(
    strategy: str, ranks: int, batches: list[tuple[int, int, int, str]], tmp_path: Path
) -> None:
    runs = [words(*batch) for batch in batches]
    expected = [alone(options) for options in runs]
    found = together(ranks, curves, ranks, tmp_path, [(*run, "--strategy", strategy) for run in runs])
    for rank in found:
        for ours, theirs in zip(rank, expected, strict=True):
            assert [loss for loss, _ in ours] == pytest.approx([loss for loss, _ in theirs], abs=1e-4)
            assert [norm for _, norm in ours] == pytest.approx([norm for _, norm in theirs], rel=1e-3)
