"""What the strategies share that spread the parameters themselves over a mesh of ranks, as DTensors."""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..config import Config
from ..contract import Task
from ..errors import JobError
from ..world import World
from .agreement import SharedBuffers, same_weights
from .base import Strategy
from .gradients import Gradients
from .message import MessageStrategy

SHARDED = "torch/distributed/tensor/"
"""Where torch works on tensors of which each rank has a part."""


class MeshStrategy(MessageStrategy):
    """A model whose parameters are DTensors, all or some.

    Gradients of ranks with samples of their own arrive as their mean, in the last backward pass of a step.
    """

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        super().__init__(task, cfg, world, accumulation, dataset)
        # Built where the job builds it: on a GPU there need only ever be room for a part of it.
        self.model = self.build_model()
        same_weights(self.model)
        _lay_out(self.model)
        self.step_module: Any = Step(self)
        self.spread()
        self.step_module.to(world.device)
        self.optimizer = self.build_optimizer(self.model)
        self.gradients = Gradients(self.model.parameters(), world.size)
        self.buffers = SharedBuffers(self.model)

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

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        totals = torch.zeros(3, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            self.set_gradient_sync(index == self.accumulation)
            _, loss, count = self.step_module(batch)
            self.scaled(loss).backward()
            totals[:2] += torch.stack([loss.detach().float(), count])
        totals[2] = asked
        self.buffers.follow()
        return self.tell(totals)

    def apply(self, skip: torch.Tensor | None) -> None:
        """See `Strategy`. Raises JobError for an optimizer that needs whole parameters."""
        with self._whole_parameters_told():
            super().apply(skip)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `Strategy`. An optimizer without state takes a step for it: raises JobError as `apply` does."""
        with self._whole_parameters_told():
            return super().state()

    @contextmanager
    def _whole_parameters_told(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            sharded = "DTensor" in str(error) or any(SHARDED in file for file in files)
            if isinstance(error, torch.OutOfMemoryError) or not sharded:
                raise
            kind, strategy = type(self.optimizer).__name__, self.cfg.strategy
            raise JobError(
                f"job {self.task.name}: the optimizer {kind} needs whole parameters, and of those under "
                f"--strategy {strategy} each rank has a part: use --strategy ddp, or another optimizer, such "
                f"as torch.optim.AdamW ({str(error).strip().splitlines()[0][:200]})"
            ) from error

    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """See `Strategy`."""
        output, loss, count = self.step_module(batch)
        self.after_evaluation()
        extra = self.task.evaluate(output, batch) if self.task.evaluate is not None else {}
        return {"loss": (loss, count), **extra}


def _lay_out(model: Any) -> None:
    """Store each parameter row by row: in another order, as of channels_last, it cannot be sharded."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()


class Step(nn.Module):
    """Forward and loss as one module, whatever the job's `forward` does with its model.

    While it is called, the parameters that are in no block are whole; those of a block are while that is.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self.model = strategy.model
        self.compute = strategy.compute

    def forward(self, batch: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Output, sum of the losses and their count; where something is learned nobody wants the output."""
        output, loss, count = self.compute(self.model, batch)
        return None if torch.is_grad_enabled() else output, loss, count
