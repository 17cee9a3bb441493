"""A plain regression: an MLP learns a function of ten numbers from noisy samples of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from ..config import Config
from .choices import chosen, refuse_data_dir

INPUTS = 10
"""Of which the function uses five: which ones is to be learned, too."""

SAMPLES = {"train": 20_000, "valid": 2_000}

MEAN, SPREAD = 14.4, 4.9
"""Of the function over its inputs: what is learned is scaled to about one."""

NOISE = 0.2
"""Standard deviation of what cannot be learned, in the scaled values: the least loss is its square."""

BLOCKS = ["blocks"]

TP_PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


class Size(NamedTuple):
    """Blocks one after another, and how many numbers go from one to the next."""

    blocks: int
    width: int


SIZES = {"small": Size(4, 64), "large": Size(8, 1024)}


class Block(nn.Module):
    """Two layers beside a residual, twice as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) -> the same."""
        return x + self.down(F.relu(self.up(x)))


class Mlp(nn.Module):
    """Ten numbers in, one out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.blocks))
        self.last = nn.Linear(size.width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 10) -> (batch,)."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x).squeeze(1)


def build_model(cfg: Config) -> Mlp:
    """See `..contract`."""
    return Mlp(chosen(cfg, "regression", SIZES))


def build_dataset(cfg: Config, split: str) -> TensorDataset:
    """See `..contract`. The function is "Friedman 1": J. H. Friedman, Annals of Statistics 19 (1991)."""
    refuse_data_dir(cfg, "regression")
    # A seed of its own for each split, and not the run's: every rank and every run has the same samples.
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    x = torch.rand(SAMPLES[split], INPUTS, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return TensorDataset(x, (y - MEAN) / SPREAD + NOISE * torch.randn(len(x), generator=generator))


def loss(output: torch.Tensor, batch: Any) -> tuple[torch.Tensor, int]:
    """Squared errors."""
    target = batch[1]
    return F.mse_loss(output.float(), target, reduction="sum"), target.numel()


def evaluate(output: torch.Tensor, batch: Any) -> dict[str, tuple[torch.Tensor, int]]:
    """How far off the guesses are."""
    target = batch[1]
    return {"absolute_error": ((output.float() - target).abs().sum(), target.numel())}
