"""Data parallel: every rank holds the whole model and takes its share of each batch; gradients are summed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Config
from ..contract import Task
from ..world import World
from .base import Strategy


class DdpStrategy(Strategy):
    """torch's DistributedDataParallel. On one rank there is nobody to talk to, and the model runs bare."""

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        super().__init__(task, cfg, world, accumulation, dataset)
        self.model = self.build_model().to(world.device)
        self.optimizer = self.build_optimizer(self.model)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.micro_step = MicroStep(self)
        self.wrapped = self.micro_step
        if world.size > 1:
            devices = [world.device] if world.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(
                self.micro_step, device_ids=devices, gradient_as_bucket_view=True
            )

    @property
    def replica_ranks(self) -> frozenset[int]:
        """See `Strategy`. Every rank has all of it."""
        return frozenset((self.world.rank,))

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`. Ranks talk to each other during the last backward pass only."""
        own_loss = torch.zeros(1, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            last = index == self.accumulation
            alone = self.world.size > 1 and not last
            with self.wrapped.no_sync() if alone else nullcontext():
                loss = self.wrapped(batch, asked if last else torch.zeros_like(asked))
                loss.backward()
            own_loss += loss.detach()
        # DDP divides by the number of ranks, which is taken back here and below.
        return torch.cat([self.micro_step.carrier.grad * self.world.size, own_loss])

    def finish_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        share = self.world.size / count
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) * share
        if self.cfg.grad_clip > 0:
            share = share * torch.clamp(self.cfg.grad_clip / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, share)
        return norm

    def apply(self, skip: torch.Tensor | None) -> None:
        """See `Strategy`."""
        if skip is not None:
            self.optimizer.found_inf = skip
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.micro_step.carrier.grad = None

    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """See `Strategy`."""
        output, loss, count = self.compute(self.model, batch)
        extra = self.task.evaluate(output, batch) if self.task.evaluate is not None else {}
        return {"loss": (loss, count), **extra}


class MicroStep(nn.Module):
    """Forward and loss as one module: DDP sees all of it, whatever the job's `forward` does with its model.

    The ranks also have to add up their loss sums, counts and requests to stop. `carrier` takes these along
    with the gradients, so that no message of their own is needed: it is a zero that they are multiplied with,
    so they are its gradient, and accumulate and travel like any other.
    """

    def __init__(self, strategy: DdpStrategy) -> None:
        super().__init__()
        self.model = strategy.model
        self.compute = strategy.compute
        self.carrier = nn.Parameter(torch.zeros(3, device=strategy.world.device))

    def forward(self, batch: Any, asked: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of `batch`. `asked` is 1 where somebody wants this rank to stop, else 0."""
        _, loss, count = self.compute(self.model, batch)
        carried = torch.stack([loss.detach().float(), count, asked])
        return loss + (self.carrier * carried).sum()
