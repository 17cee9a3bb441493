"""A small GPT that learns to continue text, byte by byte."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..config import Config
from ..errors import UsageError
from .corpus import corpus
from .gpt_size import SIZES, VALID_SHARE, VOCABULARY, Size, chosen

BLOCKS = ["blocks"]

TP_PLAN = {
    "blocks.*.attention.qkv": "colwise",
    "blocks.*.attention.out": "rowwise",
    "blocks.*.mlp.up": "colwise",
    "blocks.*.mlp.down": "rowwise",
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        # The rows lie head by head, each with its query, key and value: a rank that holds some of the rows
        # holds whole heads.
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> the same."""
        batch, time, _ = x.shape
        q, k, v = self.qkv(x).view(batch, time, -1, 3, self.head_width).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, -1))


class Mlp(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> the same."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside the residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width, bias=False)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width, bias=False)
        self.mlp = Mlp(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out.

    Embedding and output weights are two tensors: tied ones cannot be sharded in groups of their own, and with
    a vocabulary of bytes tying saves nothing.
    """

    def __init__(self, size: Size, sequence_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.position = nn.Embedding(sequence_length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                # What is added to the residual is scaled down, so that depth does not widen its spread.
                depth = 2 * size.layers if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 / math.sqrt(depth))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, time) of int64 -> (batch, time, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Windows:
    """Consecutive pieces of a text: pairs of (bytes, the same shifted by one)."""

    def __init__(self, text: torch.Tensor, sequence_length: int) -> None:
        self.text = text
        self.width = sequence_length

    def __len__(self) -> int:
        return max(len(self.text) - 1, 0) // self.width

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.width
        piece = self.text[start : start + self.width + 1].long()
        return piece[:-1], piece[1:]


def build_model(cfg: Config) -> Gpt:
    """See `..contract`. Raises UsageError when ranks would share a head."""
    size = chosen(cfg)
    _check_heads(cfg, size)
    return Gpt(size, cfg.sequence_length)


def _check_heads(cfg: Config, size: Size) -> None:
    ranks = 1
    if cfg.strategy == "fsdp+tp":
        ranks = cfg.tensor_parallel or 2
    elif cfg.strategy == "tp" and dist.is_initialized():
        ranks = dist.get_world_size()
    if size.heads % ranks:
        counts = [str(count) for count in range(2, size.heads + 1) if size.heads % count == 0]
        fitting = [name for name, other in SIZES.items() if other.heads % ranks == 0]
        others = f", or --size {' or '.join(fitting)}" if fitting else ""
        raise UsageError(
            f"--strategy {cfg.strategy}: {ranks} ranks cannot share the {size.heads} heads of an attention "
            f"layer, of which each takes whole ones: use {' or '.join(counts)} ranks for a layer{others}"
        )


def build_dataset(cfg: Config, split: str) -> Windows:
    """See `..contract`."""
    text = corpus(cfg.data_dir)
    border = int(len(text) * (1 - VALID_SHARE))
    return Windows(text[:border] if split == "train" else text[border:], cfg.sequence_length)


def loss(output: torch.Tensor, batch: Any) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over all bytes."""
    target = batch[1]
    return F.cross_entropy(output.float().flatten(0, 1), target.flatten(), reduction="sum"), target.numel()


def evaluate(output: torch.Tensor, batch: Any) -> dict[str, tuple[torch.Tensor, int]]:
    """How many bytes were guessed right."""
    target = batch[1]
    return {"accuracy": ((output.argmax(-1) == target).sum(), target.numel())}
