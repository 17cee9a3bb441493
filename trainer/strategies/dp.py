"""One process that drives all GPUs of its host, each with a thread and a part of every micro-batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..config import Config
from ..contract import Task
from ..errors import UsageError
from ..world import World
from .ddp import DdpStrategy
from .layout import Layout, data_parallel


def one_process(cfg: Config, world: World) -> Layout:
    """The one rank takes all samples. Raises UsageError where there is more than one, or nothing to drive."""
    if world.size > 1:
        raise UsageError(
            f"--strategy dp is one process for all GPUs of a host, and there are {world.size} ranks: start "
            "one (nproc_per_node = 1), or use ddp"
        )
    if world.device.type == "cuda" and torch.cuda.device_count() < 2:
        raise UsageError("--strategy dp needs two GPUs or more, and there is one: use ddp")
    return data_parallel(cfg, world)


class DpStrategy(DdpStrategy):
    """torch's DataParallel. Without GPUs there is nothing to divide a batch over, and the model runs bare."""

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """See `Strategy`."""
        return one_process(cfg, world)

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        super().__init__(task, cfg, world, accumulation, dataset)
        self.divided: Any = Divided(self)
        if world.device.type == "cuda":
            self.divided = nn.DataParallel(self.divided)

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        totals = torch.zeros(2, device=self.world.device)
        for batch in batches:
            pairs = self.divided(batch)
            sums = pairs.sum(0)
            self.scaled(sums[0]).backward()
            totals += sums.detach()
        return torch.cat([totals, asked.view(1), totals[:1]])


class Divided(nn.Module):
    """What runs on each GPU."""

    def __init__(self, strategy: DpStrategy) -> None:
        super().__init__()
        self.model = strategy.model
        self.compute = strategy.compute

    def forward(self, batch: Any) -> torch.Tensor:
        """Loss sum and count of this GPU's part, as one row."""
        _, loss, count = self.compute(self.model, batch)
        return torch.stack([loss.float(), count]).view(1, 2)
