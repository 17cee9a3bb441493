"""Gradients that travel in fewer bytes under ddp, and parameters that take no part in the loss there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import rank_training
import torch
from ranks import together
from training import Trainings, job, reference

from trainer import contract, strategies
from trainer.config import parse
from trainer.errors import JobError, UsageError
from trainer.strategies import compression
from trainer.strategies.compression import FIRST_STEPS
from trainer.world import World

LARGE = """
import torch
from torch import nn

def build_model(cfg):
    return nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))

def build_dataset(cfg, split):
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    return list(zip(x, x[:, :4] * 2, strict=True))

def loss(output, batch):
    # Sums that a float16 does not hold, nor do their gradients fit into one.
    return 1e6 * ((output - batch[1]) ** 2).sum(), 1_000_003 * len(output)
"""
SAMPLES, STEPS = 4, FIRST_STEPS + 6


def write(folder: Path, text: str) -> str:
    path = folder / "written.py"
    path.write_text(text)
    return str(path)


def steps(rank: int, path: str, kinds: tuple[str, ...]) -> list[Any]:
    """Train with each kind of compression. Returns its losses, last totals, and the weights' sums."""
    found = []
    for kind in kinds:
        cfg = parse(["--task", path, "--gradient-compression", kind, "--bucket-mb", "1"])
        task = contract.load(path)
        torch.manual_seed(0)
        where = World(rank=rank, local_rank=rank, size=2, device=torch.device("cpu"), local_size=2)
        built: Any = strategies.find("ddp")(task, cfg, where, 1)
        dataset = task.build_dataset(cfg, "train")
        losses = []
        for step in range(STEPS):
            first = (2 * step + rank) * SAMPLES % len(dataset)
            batch = torch.utils.data.default_collate(dataset[first : first + SAMPLES])
            totals = built.accumulate([batch], torch.tensor(float(rank)))
            built.finish_gradients(totals[1])
            for group in built.optimizer.param_groups:
                group["lr"] = 0.001
            built.apply(None)
            losses.append(float(totals[0] / totals[1]))
        found.append((losses, totals.tolist(), [float(p.detach().double().sum()) for p in built.parameters]))
    return found


def test_compressed_gradients_train_and_everything_else_stays_exact(tmp_path: Path) -> None:
    kinds = ("none", "fp16", "powersgd")
    first, second = together(2, steps, write(tmp_path, LARGE), kinds)
    plain = first[0][0]
    for kind, (losses, totals, weights), other in zip(kinds, first, second, strict=True):
        assert totals[1:3] == [2 * SAMPLES * 1_000_003, 1.0], kind
        assert (losses, weights) == (other[0], other[2]), kind
        assert losses[-1] < 0.7 * losses[0], kind
    assert first[1][0] == pytest.approx(plain, rel=2e-3)
    assert first[1][0] != plain
    assert first[2][0][:FIRST_STEPS] == pytest.approx(plain[:FIRST_STEPS], rel=1e-5)
    assert first[2][0] == pytest.approx(plain, rel=0.3)


@pytest.mark.parametrize("kind", ["fp16", "powersgd"])
def test_a_bad_step_leaves_nothing_in_what_compresses(kind: str, tmp_path: Path) -> None:
    bad, last = FIRST_STEPS + 2, FIRST_STEPS + 6
    environment = {"JOB_BAD": f"1 {bad}", "JOB_RANK": "1", "JOB_MICRO": "2", "JOB_STOP": str(last - 1)}
    options = ("--task", job("spoiled"), "--steps", "50", "--global-batch", "12", "--micro-batch", "3")
    options += ("--on-nan", "skip", "--gradient-compression", kind, "--learning-rate", "0.01")
    for rank in together(2, rank_training.train, 2, tmp_path, options, environment):
        assert not rank.error
        assert list(rank.losses) == list(range(1, last + 1))  # asked in the last but one, told in the last
        assert [step for step, loss in rank.losses.items() if loss == "nan"] == [1, bad]
        assert rank.losses[last] < rank.losses[2]


def scaled(rank: int, folder: Path, kind: str) -> list[Any]:
    """Train in fp16 and fp32 with compressed gradients."""
    options = ("--task", job("stack"), "--steps", "16", "--global-batch", "12", "--micro-batch", "3")
    options += ("--gradient-compression", kind, "--learning-rate", "0.01")
    ways = [options, (*options, "--precision", "fp16")]
    return [rank_training.train(rank, 2, folder, way) for way in ways]


@pytest.mark.parametrize("kind", ["fp16", "powersgd"])
def test_compression_goes_with_a_scaled_loss(kind: str, tmp_path: Path) -> None:
    for full, half in together(2, scaled, tmp_path, kind):
        assert not full.error + half.error
        assert half.losses[16] == pytest.approx(full.losses[16], abs=0.2)
        assert half.losses[16] < half.losses[1] - 0.2
        assert half.records[-1]["overflowed_steps"] <= 3


def test_where_gradients_cannot_be_compressed(train: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--task", job("stack"), "--steps", "2")
    with pytest.raises(UsageError, match="--gradient-compression means nothing under --strategy fsdp, only"):
        train(*options, "--strategy", "fsdp", "--gradient-compression", "fp16")
    with pytest.raises(
        UsageError, match="bf16 needs NCCL, which is for GPUs, and this is a CPU; use fp16 or"
    ):
        train(*options, "--gradient-compression", "bf16")
    monkeypatch.setitem(sys.modules, "numpy", None)
    here = World(rank=0, local_rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(UsageError, match="powersgd needs numpy in the interpreter of the ranks; install it"):
        compression.check(parse(["--gradient-compression", "powersgd"]), here)


# --- parameters that take no part --------------------------------------------------------------------------

IDLE = """
import os
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.idle, self.extra = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        y = self.layer(x)
        {use}
        return y

def build_model(cfg):
    return Model()

def build_dataset(cfg, split):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    return list(zip(x, x.flip(1), strict=True))

def loss(output, batch):
    return ((output - batch[1]) ** 2).sum(), len(output)
"""
QUICK = ("--steps", "12", "--warmup-steps", "2", "--learning-rate", "0.02", "--weight-decay", "1")
EIGHT = ("--global-batch", "8", "--micro-batch", "2")


def test_parameters_that_no_step_uses_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, IDLE.format(use="y = y + self.extra(y)"))
    expected = reference(path, *QUICK, global_batch=8)
    first, second = together(2, rank_training.train, 2, tmp_path, ("--task", path, *QUICK, *EIGHT))
    assert first.losses == second.losses == pytest.approx(expected, abs=2e-4)
    torch.manual_seed(0)
    drawn = contract.load(path).build_model(None).idle
    assert first.weights[2:4] == pytest.approx(
        [float(p.detach().sum()) for p in drawn.parameters()], abs=1e-6
    )


@pytest.mark.parametrize(
    ("use", "alone"),
    [
        pytest.param("os.environ['RANK'] == '1'", "self.steps % 4 in (3, 0)", id="one rank does"),
        pytest.param("self.steps % 2", "self.steps % 2", id="not in the last micro-batch"),
        pytest.param("self.steps % 4 == 1", "self.steps % 8 in (1, 3)", id="not in every step"),
    ],
)
def test_parameters_that_are_not_used_everywhere(use: str, alone: str, tmp_path: Path) -> None:
    """Two ranks of two micro-batches a step do as one of four that uses the parameters in the same ones."""
    text = "y = y + self.extra(y) if {} else y"
    whole = write(tmp_path, IDLE.format(use=text.format(alone)))
    (expected,) = together(1, rank_training.train, 1, tmp_path, ("--task", whole, *QUICK, *EIGHT))
    path = write(tmp_path, IDLE.format(use=text.format(use)))
    first, second = together(2, rank_training.train, 2, tmp_path, ("--task", path, *QUICK, *EIGHT))
    assert first.losses == second.losses == pytest.approx(expected.losses, abs=1e-4)
    assert first.weights == second.weights == pytest.approx(expected.weights, abs=1e-4)


def refused(rank: int, folder: Path, path: str) -> str:
    try:
        rank_training.train(rank, 2, folder, ("--task", path, *QUICK, *EIGHT))
    except JobError as error:
        return str(error)
    return ""


def test_parameters_that_only_later_steps_leave_out_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, IDLE.format(use="y = y + self.idle(y) + (self.extra(y) if self.steps < 5 else 0)"))
    for said in together(2, refused, tmp_path, path):
        assert (
            "a step did not use extra.weight, extra.bias, and the first step did: with --strategy ddp" in said
        )
