"""What the strategies share that spread the parameters themselves over a mesh of ranks, as DTensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..config import Config
from ..contract import Task
from ..world import World
from .agreement import SharedBuffers, same_weights
from .base import Strategy
from .gradients import Gradients


class MeshStrategy(Strategy):
    """A model whose parameters are DTensors, all or some.

    Gradients of ranks with samples of their own arrive as their mean, in the last backward pass of a step.
    One message of a few numbers follows, with what all ranks have to know about the step and its norm.
    """

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int) -> None:
        super().__init__(task, cfg, world, accumulation)
        # Built where the job builds it: on a GPU there need only ever be room for a part of it.
        self.model = self.build_model()
        same_weights(self.model)
        self.step_module: Any = Step(self)
        self.spread()
        self.step_module.to(world.device)
        self.optimizer = self.build_optimizer(self.model)
        self.gradients = Gradients(self.model.parameters(), world.size)
        self.buffers = SharedBuffers(self.model)
        self.squared_norm = torch.zeros((), device=world.device)

    @abstractmethod
    def spread(self) -> None:
        """Turn the parameters of `step_module`, which holds the model, into DTensors. Raises JobError."""

    def set_gradient_sync(self, wanted: bool) -> None:
        """Whether the next backward pass adds up the gradients of all ranks."""

    def after_evaluation(self) -> None:
        """Take back what a forward pass without a backward pass has left behind."""

    def mesh(self, *axes: tuple[str, int]) -> DeviceMesh:
        """All ranks as a mesh with these names and sizes of its axes."""
        names, sizes = zip(*axes, strict=True)
        return init_device_mesh(self.world.device.type, sizes, mesh_dim_names=names)

    @property
    def replica_ranks(self) -> frozenset[int]:
        """See `Strategy`. All of them together."""
        return frozenset(range(self.world.size))

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        totals = torch.zeros(3, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            self.set_gradient_sync(index == self.accumulation)
            _, loss, count = self.step_module(batch)
            loss.backward()
            totals[:2] += torch.stack([loss.detach().float(), count])
        totals[2] = asked
        own_loss = totals[:1].clone()
        self.buffers.follow()
        # Ranks that share layers have the same loss and count, and are counted once.
        alike = self.world.size // self.layout.data
        numbers = torch.cat([totals / alike, self.gradients.squared_norm(self.world.device)])
        dist.all_reduce(numbers)
        self.squared_norm = numbers[3]
        return torch.cat([numbers[:3], own_loss])

    def finish_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        share = self.layout.data / count
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
        self.optimizer.zero_grad(set_to_none=True)

    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """See `Strategy`."""
        output, loss, count = self.step_module(batch)
        self.after_evaluation()
        extra = self.task.evaluate(output, batch) if self.task.evaluate is not None else {}
        return {"loss": (loss, count), **extra}


class Step(nn.Module):
    """Forward and loss as one module, whatever the job's `forward` does with its model.

    While it is called, the parameters that are in no block are whole; those of a block are while that is.
    """

    def __init__(self, strategy: MeshStrategy) -> None:
        super().__init__()
        self.model = strategy.model
        self.compute = strategy.compute

    def forward(self, batch: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Output, sum of the losses and their count; where something is learned nobody wants the output."""
        output, loss, count = self.compute(self.model, batch)
        return None if torch.is_grad_enabled() else output, loss, count
