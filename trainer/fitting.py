"""`--micro-batch auto`: how many samples a rank's memory holds at a time, found by trying before training.

The number is doubled until something does not fit or the rank's share of the step is reached. Each try is a
whole step, so gradients and the optimizer's state are there too. What is tried is thrown away: training
starts with a model, an optimizer and random numbers of its own, as if nothing had been tried.

No rank may wait for one that has run out of memory. Where each rank holds the whole model, it tries alone,
and may run out. Where ranks need each other for every block, they try together, and only what the try before
lets expect to fit everywhere.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import default_collate

from . import strategies
from .batches import BatchPlan
from .config import Config
from .contract import Task
from .data import to_device
from .errors import UsageError
from .progress import Progress
from .world import World

AUTO = "auto"

USABLE = 0.9
"""The share of the memory that tensors may take: samples differ, and memory has gaps."""

WHOLE_MODEL = {"ddp": "ddp", "dp": "dp", "horovod": "ddp"}
"""Strategies under which a rank holds the whole model, and the one to try on a rank alone in their place."""


class GpuMemory:
    """The memory of a GPU, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self) -> None:
        """Give back what is not in use; from here on `peak` counts."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def used(self) -> int:
        """What tensors take now."""
        return int(torch.cuda.memory_allocated(self.device))

    def peak(self) -> int:
        """The most that tensors have taken since `begin`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def usable(self) -> int:
        """What tensors of this process may take in all, other processes' left out."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(USABLE * (free + torch.cuda.memory_reserved(self.device)))


def memory_of(device: torch.device) -> Any:
    """What is measured in a try. Raises UsageError on a CPU, where the system ends what takes too much."""
    if device.type == "cpu":
        raise UsageError("--micro-batch auto is found by trying on a GPU, and this is a CPU: give a number")
    return GpuMemory(device)


def resolve(cfg: Config, task: Task, world: World, dataset: Any, progress: Progress) -> Config:
    """`cfg` with the number that was found. Called by all ranks together. Raises UsageError."""
    memory = memory_of(world.device)
    once = replace(cfg, micro_batch=1)
    share = BatchPlan.derive(once, strategies.find(cfg.strategy).divide(once, world).data).share
    kind = Alone if cfg.strategy in WHOLE_MODEL else Together
    trial = kind(once, task, world, dataset, memory)
    found = 0
    for size in doubled(share):
        if not _everywhere(trial.fits(size)):
            break
        found = size
    peak, usable = memory.peak(), memory.usable()
    del trial
    if cfg.compile == "yes":
        torch._dynamo.reset()  # else the sizes that were tried count among those that training may have
    memory.begin()
    if found == 0:
        raise UsageError(
            "--micro-batch auto: not even one sample at a time fits into the memory of every rank; "
            "--activation-checkpointing yes or --precision bf16 save some, fsdp spreads the model"
        )
    # As many micro-batches as that takes, all as even as can be.
    micro = math.ceil(share / math.ceil(share / found))
    progress.say(
        f"--micro-batch auto: {micro}; {found} of the {share} samples of a rank fit at a time"
        + ("" if found == share else f" (the last try took {peak / 2**30:.1f} of {usable / 2**30:.1f} GiB)")
    )
    return replace(cfg, micro_batch=micro)


def doubled(share: int) -> Iterator[int]:
    """1, 2, 4, ... and at last `share`."""
    size = 1
    while size < share:
        yield size
        size *= 2
    yield share


def _everywhere(fits: bool) -> bool:
    agreed = torch.tensor(int(fits))
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return bool(agreed)


class Trial(ABC):
    """Steps of a strategy that is there for nothing else."""

    strategy: Any

    def __init__(self, cfg: Config, task: Task, dataset: Any, memory: Any, world: World) -> None:
        self.collate = task.collate or default_collate
        self.dataset, self.memory, self.device = dataset, memory, world.device
        self.strategy = strategies.find(cfg.strategy)(task, cfg, world, 1, dataset)
        if self.strategy.counting is not None:
            self.strategy.counting.close()

    @abstractmethod
    def fits(self, size: int) -> bool:
        """Whether this rank can take a step of `size` samples. Called by all ranks together."""

    def step(self, size: int) -> None:
        """Take it. Raises OutOfMemoryError."""
        samples = [self.dataset[number % len(self.dataset)] for number in range(size)]
        batch = to_device(self.collate(samples), self.device)
        totals = self.strategy.accumulate([batch], torch.zeros((), device=self.device))
        self.strategy.finish_gradients(totals[1])
        self.strategy.apply(None)


class Alone(Trial):
    """Tries as one rank of one, without a word to the others."""

    def __init__(self, cfg: Config, task: Task, world: World, dataset: Any, memory: Any) -> None:
        alone = replace(cfg, strategy=WHOLE_MODEL[cfg.strategy], gradient_compression="none")
        super().__init__(alone, task, dataset, memory, replace(world, rank=0, size=1, local_size=1))

    def fits(self, size: int) -> bool:
        """See `Trial`. Finds out."""
        self.memory.begin()
        try:
            self.step(size)
        except torch.cuda.OutOfMemoryError:
            return False
        return bool(self.memory.peak() <= self.memory.usable())


class Together(Trial):
    """Tries what the try before lets expect to fit: a rank that ran out of memory would be waited for."""

    def __init__(self, cfg: Config, task: Task, world: World, dataset: Any, memory: Any) -> None:
        super().__init__(cfg, task, dataset, memory, world)
        self.peaks: dict[int, int] = {}
        self.resting = 0
        """Bytes that are in use between steps."""

    def expected(self, size: int) -> float:
        """Bytes that a step of `size` takes at most: those of the largest try, and its growth continued.

        Memory grows in proportion to the samples, but for what is there in any case. After one try it is
        unknown how much that is, and all that the step added counts as growing.
        """
        if not self.peaks:
            return 0
        (before, less), (last, most) = [(0, self.resting), *self.peaks.items()][-2:]
        return most + (most - less) / (last - before) * (size - last)

    def fits(self, size: int) -> bool:
        """See `Trial`. Raises UsageError on a rank that ran out of memory all the same: that ends all."""
        if not _everywhere(self.expected(size) <= self.memory.usable()):
            return False
        self.memory.begin()
        try:
            self.step(size)
        except torch.cuda.OutOfMemoryError as error:
            raise UsageError(
                f"--micro-batch auto: a step of {size} samples ran out of memory, and more was there: "
                "give a number"
            ) from error
        self.peaks[size], self.resting = self.memory.peak(), self.memory.used()
        return bool(self.peaks[size] <= self.memory.usable())
