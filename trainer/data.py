"""Brings micro-batches to the device, and knows how long training had to wait for them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from .batches import BatchPlan, MicroBatches
from .config import Config
from .contract import Task
from .errors import WorkerError


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it on `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


class Feed:
    """Micro-batches of one share of the samples, from one sample on; which share, `rank` says.

    Worker processes live as long as this does, and each has `cfg.prefetch` micro-batches ready. `waited` adds
    up the seconds spent waiting for data.
    """

    def __init__(
        self,
        dataset: Any,
        task: Task,
        cfg: Config,
        plan: BatchPlan,
        device: torch.device,
        rank: int,
        start: int,
    ) -> None:
        self.device = device
        self.accumulation = plan.accumulation
        self.waited = 0.0
        loader = DataLoader(
            dataset,
            batch_sampler=MicroBatches(plan, length=len(dataset), seed=cfg.seed, rank=rank, start=start),
            num_workers=cfg.workers,
            prefetch_factor=cfg.prefetch if cfg.workers else None,
            collate_fn=task.collate,
            pin_memory=device.type == "cuda",
            worker_init_fn=ignore_stop_signals,
            generator=torch.Generator().manual_seed(cfg.seed),
        )
        self._batches = iter(loader)

    def step(self) -> Iterator[Any]:
        """The micro-batches of one step."""
        for _ in range(self.accumulation):
            began = time.perf_counter()
            batch = to_device(next(self._batches), self.device)
            self.waited += time.perf_counter() - began
            yield batch


class HeldOut:
    """Micro-batches of a share, `rank` of `ranks`, of the split held out: the same in every evaluation."""

    def __init__(
        self, dataset: Any, task: Task, cfg: Config, device: torch.device, rank: int, ranks: int
    ) -> None:
        self.dataset = dataset
        self.collate = task.collate or default_collate
        self.device = device
        self.size = int(cfg.micro_batch)
        self.rank, self.ranks = rank, ranks
        # Every rank takes equally many: some strategies communicate in each forward pass.
        self.batches = min(cfg.eval_batches, len(dataset) // (self.size * self.ranks))

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.batches):
            first = (number * self.ranks + self.rank) * self.size
            samples = [self.dataset[index] for index in range(first, first + self.size)]
            yield to_device(self.collate(samples), self.device)


@contextmanager
def worker_faults() -> Iterator[None]:
    """Raise WorkerError when a worker process dies: torch tells of it wherever this process then is."""
    try:
        yield
    except RuntimeError as error:
        if not re.match(r"DataLoader worker \(pid", str(error)):
            raise
        raise WorkerError(
            f"{str(error).splitlines()[0].rstrip('. ')}: if nobody ended it, the host's memory has run out; "
            "lower --workers or --prefetch"
        ) from error


def ignore_stop_signals(_worker: int) -> None:
    """Leave stopping to the rank: the whole process group is signalled, and the rank still wants its data."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
