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

Buffers = dict[Any, torch.Tensor]
"""What the last checkpoint was copied to, by the index of each piece: new memory takes twice as long."""


class Staging(DefaultSavePlanner):
    """Plans as torch does; once the plan is settled, it copies to `buffers`, and calls `done`.

    Used for one checkpoint; `buffers` are for all, one at a time. Only the copies are written.
    """

    def __init__(self, buffers: Buffers, done: Callable[[], None]) -> None:
        super().__init__()
        self._buffers = buffers
        self._done = done
        self._pickled: dict[Any, io.BytesIO] = {}

    def finish_plan(self, new_plan: Any) -> Any:
        """Copy what the final plan has for this rank."""
        plan = super().finish_plan(new_plan)
        for index in self._buffers.keys() - {item.index for item in plan.items}:
            del self._buffers[index]
        devices = set()
        for item in plan.items:
            value = super().resolve_data(item)
            if isinstance(value, torch.Tensor):
                self._copy(item.index, value.detach())
                devices.add(value.device)
            else:
                self._pickled[item.index] = value  # which is a copy
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self.state_dict: dict[str, Any] = {}  # may be the last reference to what was gathered for this
        self._done()
        return plan

    def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
        """The copy of a piece."""
        index = write_item.index
        return self._pickled[index] if index in self._pickled else self._buffers[index]

    def _copy(self, index: Any, value: torch.Tensor) -> None:
        buffer = self._buffers.get(index)
        # Into pinned memory a GPU copies by itself, several times faster.
        pinned = value.device.type == "cuda"
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
            self._buffers[index] = buffer
        buffer.copy_(value, non_blocking=pinned)
