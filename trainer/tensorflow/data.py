"""Brings micro-batches of NumPy arrays to training, and knows how long it had to wait for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..batches import BatchPlan, MicroBatches
from ..config import Config
from ..contract import Task


def collate(samples: list[Any]) -> Any:
    """Stack samples to a batch of the same structure. float64, Python's kind of number, becomes float32."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate(list(column)) for column in zip(*samples, strict=True)))
    if isinstance(first, list | tuple):
        return tuple(collate(list(column)) for column in zip(*samples, strict=True))
    stacked = np.stack([np.asarray(sample) for sample in samples])
    return stacked.astype(np.float32) if stacked.dtype == np.float64 else stacked


class Feed:
    """The micro-batches of all ranks of one process, from sample `start` on.

    `workers` threads prepare them ahead of time; without any, they are prepared when they are asked for.
    `waited` adds up the seconds spent waiting for data.
    """

    def __init__(self, dataset: Any, task: Task, cfg: Config, plan: BatchPlan, start: int) -> None:
        self.dataset = dataset
        self.collate = task.collate or collate
        self.accumulation = plan.accumulation
        self.waited = 0.0
        shares = [
            MicroBatches(plan, length=len(dataset), seed=cfg.seed, rank=rank, start=start)
            for rank in range(plan.ranks)
        ]
        self._indices: Iterator[tuple[list[int], ...]] = zip(*shares, strict=True)
        self._ahead = cfg.workers * cfg.prefetch
        self._pool = ThreadPoolExecutor(cfg.workers, "data") if cfg.workers else None
        self._coming: deque[Future[list[Any]]] = deque()

    def step(self) -> list[list[Any]]:
        """The micro-batches of one step: for each, one batch a rank."""
        began = time.perf_counter()
        batches = [self._next() for _ in range(self.accumulation)]
        self.waited += time.perf_counter() - began
        return batches

    def close(self) -> None:
        """Prepare nothing any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> list[Any]:
        if self._pool is None:
            return self._prepare(next(self._indices))
        while len(self._coming) <= self._ahead:
            self._coming.append(self._pool.submit(self._prepare, next(self._indices)))
        return self._coming.popleft().result()

    def _prepare(self, indices: tuple[list[int], ...]) -> list[Any]:
        return [self.collate([self.dataset[index] for index in share]) for share in indices]


class HeldOut:
    """Micro-batches of the split held out, one for each of the `ranks`: the same in every evaluation."""

    def __init__(self, dataset: Any, task: Task, cfg: Config, ranks: int) -> None:
        self.dataset = dataset
        self.collate = task.collate or collate
        self.size = int(cfg.micro_batch)
        self.ranks = ranks
        self.batches = min(cfg.eval_batches, len(dataset) // (self.size * ranks))

    def __iter__(self) -> Iterator[list[Any]]:
        for number in range(self.batches):
            first = number * self.ranks * self.size
            starts = range(first, first + self.ranks * self.size, self.size)
            yield [
                self.collate([self.dataset[index] for index in range(start, start + self.size)])
                for start in starts
            ]
