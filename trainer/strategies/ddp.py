"""Data parallel: every rank holds the whole model and takes its share of each batch; gradients are summed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Config
from ..contract import Task
from ..errors import JobError
from ..world import World
from . import compression
from .agreement import SharedBuffers
from .base import Strategy
from .unused import FirstStep


class DdpStrategy(Strategy):
    """torch's DistributedDataParallel. On one rank there is nobody to talk to, and the model runs bare."""

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        super().__init__(task, cfg, world, accumulation, dataset)
        self.compressor = compression.build(cfg, world, self.scaler)
        self.model = self.build_model().to(world.device)
        self.optimizer = self.build_optimizer(self.model)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.buffers = SharedBuffers(self.model)
        self.micro_step = MicroStep(self)
        self.wrapped: Any = self.micro_step
        self.first_step: FirstStep | None = None
        self.some_unused = False
        """Whether there are parameters that not every step uses on every rank."""
        if world.size > 1:
            self.first_step = self.micro_step.first_step = FirstStep(self.parameters)
            self.wrapped = self.wrap()

    def wrap(self) -> Any:
        """The micro-step with what adds up its gradients."""
        devices = [self.world.device] if self.world.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            self.micro_step,
            device_ids=devices,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self.cfg.bucket_mb,
            find_unused_parameters=self.some_unused,
        )
        # It gives all ranks the same ones before a forward pass. After it they differ again, and so would
        # evaluations, and checkpoints by the rank that writes them. So it is done after each step instead.
        wrapped.broadcast_buffers = False
        if self.compressor is not None:
            wrapped.register_comm_hook(None, self.compressor.hook)
        return wrapped

    @property
    def replica_ranks(self) -> frozenset[int]:
        """See `Strategy`. Every rank has all of it."""
        return frozenset((self.world.rank,))

    @property
    def can_skip(self) -> bool:
        """See `Strategy`."""
        return super().can_skip and (self.compressor is None or self.compressor.exact_skips)

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`. Ranks talk to each other during the last backward pass only."""
        if self.some_unused and not self.wrapped.find_unused_parameters:
            self.wrapped = self.wrap()
        sums = torch.zeros(3, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            last = index == self.accumulation
            alone = self.world.size > 1 and not last
            with self.wrapped.no_sync() if alone else nullcontext():
                loss, numbers = self.wrapped(batch, asked if last else torch.zeros_like(asked), last)
                loss.backward()
            sums += numbers
        own_loss = sums[:1].clone()
        if self.world.size > 1:
            self.buffers.follow()
        if self.first_step is not None:
            self.some_unused = self.first_step.conclude()
            self.first_step = self.micro_step.first_step = None
        if self.micro_step.carrier is None:
            dist.all_reduce(sums)
        else:
            # DDP divides by the number of ranks, which is taken back here and below.
            sums = self.micro_step.carrier.grad * self.world.size
        return torch.cat([sums, own_loss])

    def finish_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(gradients) < len(self.parameters) and self.world.size > 1 and not self.some_unused:
            self._refuse_unused()
        share = self.unscaled(self.world.size / count)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) * share
        if self.compressor is not None:
            self.compressor.learn(norm * count)
        if self.cfg.grad_clip > 0:
            share = share * torch.clamp(self.cfg.grad_clip / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, share)
        return norm

    def _refuse_unused(self) -> None:
        names = [
            name
            for name, value in self.model.named_parameters()
            if value.requires_grad and value.grad is None
        ]
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise JobError(
            f"job {self.task.name}: a step did not use {listed}, and the first step did: with --strategy ddp "
            "the ranks wait for the gradient of each parameter; let the loss depend on all of them in each "
            "step, or use fsdp"
        )

    def apply(self, skip: torch.Tensor | None) -> None:
        """See `Strategy`."""
        if skip is not None:
            self.optimizer.found_inf = skip
        self.optimizer.step()
        self.clear()

    def discard(self) -> None:
        """See `Strategy`."""
        if self.compressor is not None:
            self.compressor.forget()
        self.clear()

    def clear(self) -> None:
        """See `Strategy`."""
        super().clear()
        if self.micro_step.carrier is not None:
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
    so they are its gradient, and accumulate and travel like any other. There is none when gradients are
    compressed, which would spoil them.
    """

    carrier: nn.Parameter | None

    def __init__(self, strategy: DdpStrategy) -> None:
        super().__init__()
        self.model = strategy.model
        self.compute = strategy.compute
        self.scaled = strategy.scaled
        self.first_step: FirstStep | None = None
        carrier = nn.Parameter(torch.zeros(3, device=strategy.world.device))
        self.register_parameter("carrier", carrier if strategy.compressor is None else None)

    def forward(self, batch: Any, asked: torch.Tensor, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """What the backward pass starts from; and the sum of the losses of `batch`, their count, and `asked`.

        `asked` is 1 where somebody wants this rank to stop, else 0. `last` is whether the ranks talk to each
        other in this backward pass.
        """
        _, loss, count = self.compute(self.model, batch)
        carried = torch.stack([loss.detach().float(), count, asked])
        loss = self.scaled(loss)
        if self.first_step is not None:
            loss = self.first_step.watch(loss, last=last)
        return loss if self.carrier is None else loss + (self.carrier * carried).sum(), carried
