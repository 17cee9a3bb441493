"""Brings a step's few numbers from the device to the host without making the device wait for the host.

A GPU is given work ahead of time. Reading a number of the step just started would make the host wait until
that step is over, and then the GPU until it is given the next. So on a GPU the numbers of a step are read
when the following one has been started; on a CPU, where there is nothing to gain, at once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

Numbers = tuple[int, list[float]]
"""A step and its numbers."""


class Readback:
    """A queue of steps on their way. `lag` is how many steps may be under way unread."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._pending: deque[tuple[int, torch.Tensor, Any]] = deque()

    def push(self, step: int, numbers: torch.Tensor) -> list[Numbers]:
        """Send `numbers` of `step` on their way. Returns those steps that are due, oldest first."""
        done = None
        if numbers.is_cuda:
            numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(
                numbers, non_blocking=True
            )
            done = torch.cuda.Event()
            done.record()
        self._pending.append((step, numbers, done))
        return self._take(self.lag)

    def flush(self) -> list[Numbers]:
        """All steps that are still under way, oldest first; waits for the device."""
        return self._take(0)

    def _take(self, leave: int) -> list[Numbers]:
        taken = []
        while len(self._pending) > leave:
            step, numbers, done = self._pending.popleft()
            if done is not None:
                done.synchronize()
            taken.append((step, numbers.tolist()))
        return taken
