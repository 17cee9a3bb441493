"""What the strategies share that send one message of a few numbers after the backward passes of a step."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from .base import Strategy


class HeldGradients(Protocol):
    """Of the gradients, what this rank holds."""

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """This rank's share of the squared norm of all: summed over the ranks it is the whole."""

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply all of them by `factor`."""


class MessageStrategy(Strategy):
    """Gradients of which each rank holds some. `gradients` are those of this rank."""

    gradients: HeldGradients
    squared_norm: torch.Tensor
    """Of the gradients as they are added up, of all ranks."""

    def tell(self, totals: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' loss sums, counts and requests to stop, and the norm of what they hold.

        Returns what `accumulate` does.
        """
        own_loss = totals[:1].clone()
        numbers = torch.cat([totals, self.gradients.squared_norm(self.world.device)])
        # Ranks that share layers have the same loss and count, and are counted once.
        numbers[:3] /= self.layout.tensor
        dist.all_reduce(numbers)
        self.squared_norm = numbers[3]
        return torch.cat([numbers[:3], own_loss])

    def finish_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """See `Strategy`. They arrive divided by the number of ranks with samples of their own."""
        share = self.unscaled(self.layout.data / count)
        norm = self.squared_norm.sqrt() * share
        if self.cfg.grad_clip > 0:
            share = share * torch.clamp(self.cfg.grad_clip / (norm + 1e-6), max=1.0)
        self.gradients.scale(share)
        return norm

    def apply(self, skip: torch.Tensor | None) -> None:
        """See `Strategy`."""
        if skip is not None:
            self.optimizer.found_inf = skip
        self.optimizer.step()
        self.clear()

    @property
    def replica_ranks(self) -> frozenset[int]:
        """See `Strategy`. All of them together."""
        return frozenset(range(self.world.size))
