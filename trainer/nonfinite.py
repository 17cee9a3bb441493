"""Steps that must not reach the weights: which they are, and what becomes of them.

A step is bad when its loss is not finite, or its gradients are not. Under fp16 gradients that are not finite
are no fault while the scale of the loss can be lowered: then that is done, and the step left out.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import torch
import torch.distributed as dist

from . import loss_scale
from .config import Config
from .strategies.base import Strategy
from .strategies.gradients import local

PATIENCE = 10
"""Bad steps in a row that are skipped; with this one training ends."""


class Outcome(enum.Enum):
    """What the numbers of a step say about it."""

    GOOD = enum.auto()
    OVERFLOW = enum.auto()
    """Only the gradients are not finite, and the loss was scaled."""
    BAD = enum.auto()


class Guard:
    """Keeps bad steps from the weights, and counts them."""

    def __init__(self, cfg: Config, strategy: Strategy, device: torch.device) -> None:
        self.strategy = strategy
        self.skips = cfg.on_nan == "skip"
        self.scaler = strategy.scaler
        self.skipped = 0
        """Bad steps so far."""
        self.overflows = 0
        self._in_a_row = 0
        self._spoiled = torch.zeros((), device=device)
        # Running means and the like have taken up a batch before anybody has seen its loss.
        buffers = [buffer for buffer in strategy.model.buffers() if buffer.dtype != torch.bool]
        self._buffers = [local(buffer) for buffer in buffers] if self.skips else []
        self._kept: list[torch.Tensor] = []

    def begin(self) -> None:
        """Called before the forward passes of a step."""
        self._kept = [buffer.clone() for buffer in self._buffers]

    def numbers(self) -> tuple[torch.Tensor, ...]:
        """What `judge` has to know of the device about a step, besides its sums and norm."""
        return () if self.scaler is None else (self.scaler.scale.view(1),)

    def refused(self, totals: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """1 on the device when the step must not change the weights, else 0.

        `totals` is what `Strategy.accumulate` has returned. To be called once a step. When bad steps are not
        skipped, then from the first on none changes the weights, however late the host sees it.
        """
        counted = torch.isfinite(totals[0] / totals[1]) & (totals[1] > 0)
        good = torch.isfinite(norm)
        bad = ~counted if self.scaler is not None else ~(counted & good)
        for buffer, kept in zip(self._buffers, self._kept, strict=True):
            buffer.copy_(torch.where(bad, kept, buffer))
        if self.scaler is not None:
            self.scaler.update(counted, good)
        self._spoiled = bad.float() if self.skips else torch.maximum(self._spoiled, bad.float())
        return torch.maximum(self._spoiled, (~good).float())

    def settle(self, outcome: Outcome) -> bool:
        """Whether the step may change the weights, now that the host has looked at it."""
        if outcome is Outcome.BAD:
            for buffer, kept in zip(self._buffers, self._kept, strict=True):
                buffer.copy_(kept)
        if self.scaler is not None:
            said = (outcome is not Outcome.BAD, outcome is Outcome.GOOD)
            counted, good = (torch.full((), word, device=self._spoiled.device) for word in said)
            self.scaler.update(counted, good)
        return outcome is Outcome.GOOD

    def judge(self, numbers: list[float]) -> Outcome:
        """The host's look at a step: loss sum, count, requests to stop, own loss, norm and `numbers()`."""
        loss_sum, count, _, _, norm = numbers[:5]
        finite = math.isfinite(loss_sum) and math.isfinite(count) and count > 0
        if finite and math.isfinite(norm):
            self._in_a_row = 0
            return Outcome.GOOD
        if finite and self.scaler is not None:
            self.overflows += 1
            return Outcome.OVERFLOW
        self.skipped += 1
        self._in_a_row += 1
        return Outcome.BAD

    @property
    def ends(self) -> str:
        """Why a bad step, now the newest, ends training although bad steps are skipped; or nothing."""
        if self._in_a_row < PATIENCE:
            return ""
        return (
            f"that makes {PATIENCE} steps in a row that were skipped; lower the learning rate, or look "
            "at the data that comes here"
        )

    def report(self, numbers: list[float]) -> dict[str, Any]:
        """What a line of progress says about all this."""
        values: dict[str, Any] = {}
        if self.skips:
            values["skipped_steps"] = self.skipped
        if self.scaler is not None:
            values |= {"loss_scale": numbers[5], "overflowed_steps": self.overflows}
        return values


def hopeless(scale: float) -> bool:
    """Whether gradients that are not finite at that scale of the loss are not for being scaled."""
    return scale <= loss_scale.SMALLEST


def describe(step: int, count: float, own_loss: float, ranks: int) -> tuple[str, float | None]:
    """What is wrong with a bad step, and the loss of the first rank where that is what is.

    Called by all ranks together.
    """
    losses = [0.0] * ranks
    dist.all_gather_object(losses, own_loss)
    wrong = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    if wrong:
        where = ", ".join(f"{losses[rank]} on rank {rank}" for rank in wrong)
        return f"the loss of step {step} is {where}", losses[wrong[0]]
    if not math.isfinite(count) or count < 0:
        return f"what the job's loss counted in step {step} is {count}", None
    if count == 0:
        return f"the job's loss counted nothing in step {step}, on any rank", None
    return f"the gradients of step {step} are not finite, although the loss is on every rank", None
