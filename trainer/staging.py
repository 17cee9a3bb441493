"""Copies the state that a rank is to write, so that training can go on and change it while it is written.

Of what several ranks have, one writes each piece. Ranks copy after they have settled who writes what, so the
copies of all of them together are one checkpoint, however many ranks hold the whole model.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner


class Staging(DefaultSavePlanner):
    """Plans as torch does; once the plan is settled, it copies, and calls `done`. Used for one checkpoint.

    Only the copies are written. Each is let go when it is.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        super().__init__()
        self._done = done
        self._copies: dict[Any, torch.Tensor | io.BytesIO] = {}

    def finish_plan(self, new_plan: Any) -> Any:
        """Copy what the final plan has for this rank."""
        plan = super().finish_plan(new_plan)
        devices = set()
        for item in plan.items:
            value = super().resolve_data(item)
            if isinstance(value, torch.Tensor):
                devices.add(value.device)
                value = _copy(value.detach())
            self._copies[item.index] = value
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self.state_dict: dict[
            str, Any
        ] = {}  # may be the last reference to what was gathered for this checkpoint
        self._done()
        return plan

    def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
        """The copy of a piece. The writer asks once for each."""
        return self._copies.pop(write_item.index)


def _copy(value: torch.Tensor) -> torch.Tensor:
    if value.device.type == "cpu":
        return value.clone(memory_format=torch.contiguous_format)
    # Into pinned memory a GPU copies by itself, several times faster; torch keeps it for the next checkpoint.
    pinned = value.device.type == "cuda"
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
    return copy.copy_(value, non_blocking=pinned)
