"""An image classifier: a small convolutional network learns digits that are drawn while it trains."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..config import Config
from .choices import chosen, refuse_data_dir

EDGE = 32
"""Height and width of an image."""

PATCH = 4
"""Height and width of what is looked at as one: enough to see a stroke, and a sixteenth of the work."""

SAMPLES = {"train": 20_000, "valid": 2_000}

NOISE = 0.3
"""Standard deviation of what lies over an image; the strokes are 1."""

SEGMENTS = {
    "top": (0, 0, 0, 1),
    "middle": (1, 0, 1, 1),
    "bottom": (2, 0, 2, 1),
    "upper left": (0, 0, 1, 0),
    "upper right": (0, 1, 1, 1),
    "lower left": (1, 0, 2, 0),
    "lower right": (1, 1, 2, 1),
}
"""The strokes of a digital clock: from row and column to row and column, on a grid of 3 x 2 corners."""

LIT = (
    "1011111",
    "0000101",
    "1110110",
    "1110101",
    "0101101",
    "1111001",
    "1111011",
    "1000101",
    "1111111",
    "1111101",
)
"""The strokes of the digits 0 to 9, in the order of `SEGMENTS`."""

BLOCKS = ["blocks"]

TP_PLAN = {"up": "colwise", "down": "rowwise"}
"""Ranks can share linear layers: here those that are left when the image is read."""


class Size(NamedTuple):
    """Blocks one after another, and their channels, a multiple of `GROUPS`."""

    blocks: int
    channels: int


SIZES = {"small": Size(4, 32), "large": Size(16, 256)}

GROUPS = 8
"""Channels are normalised in so many groups, within each image: over a batch it would be over the part of it
that a rank has, and what is learned would depend on the number of ranks."""


class Block(nn.Module):
    """Two convolutions beside a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) -> the same."""
        y = self.first(F.relu(self.first_norm(x)))
        return x + self.second(F.relu(self.second_norm(y)))


class Classifier(nn.Module):
    """Images in, a logit for each digit out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, size.channels, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(Block(size.channels) for _ in range(size.blocks))
        self.norm = nn.GroupNorm(GROUPS, size.channels)
        self.up = nn.Linear(size.channels * (EDGE // PATCH) ** 2, 4 * size.channels)
        self.down = nn.Linear(4 * size.channels, len(LIT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 1, height, width) -> (batch, 10)."""
        x = self.patches(x)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x)).flatten(1)
        return self.down(F.relu(self.up(x)))


class Digits:
    """Digits of different size, place and stroke under noise, each drawn from its number alone."""

    def __init__(self, split: str) -> None:
        self.first = 0 if split == "train" else SAMPLES["train"]
        self.length = SAMPLES[split]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        image = NOISE * torch.randn(1, EDGE, EDGE, generator=generator)
        digit, height, width, thick, down, right = torch.rand(6, generator=generator).tolist()
        digit, thick = int(digit * 10), 2 + int(thick * 3)
        height, width = 7 + int(height * 6), 7 + int(width * 9)  # of a segment, in pixels
        down, right = int(down * (EDGE - 2 * height - thick)), int(right * (EDGE - width - thick))
        for lit, (top, left, bottom, end) in zip(LIT[digit], SEGMENTS.values(), strict=True):
            if lit == "1":
                rows = slice(down + top * height, down + bottom * height + thick)
                image[:, rows, right + left * width : right + end * width + thick] += 1
        return image, digit


def build_model(cfg: Config) -> Classifier:
    """See `..contract`."""
    return Classifier(chosen(cfg, "images", SIZES))


def build_dataset(cfg: Config, split: str) -> Digits:
    """See `..contract`."""
    refuse_data_dir(cfg, "images")
    return Digits(split)


def loss(output: torch.Tensor, batch: Any) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over the images."""
    target = batch[1]
    return F.cross_entropy(output.float(), target, reduction="sum"), target.numel()


def evaluate(output: torch.Tensor, batch: Any) -> dict[str, tuple[torch.Tensor, int]]:
    """How many digits were recognised."""
    target = batch[1]
    return {"accuracy": ((output.argmax(1) == target).sum(), target.numel())}
