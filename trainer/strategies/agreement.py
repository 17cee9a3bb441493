"""Keeps what every rank has a copy of alike: the weights at the start, and buffers after each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def same_weights(model: Any) -> None:
    """Give all ranks rank 0's weights where a job has drawn others; costs little when none has.

    To be called before anything is sharded, by all ranks together.
    """
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    if dist.get_world_size() == 1 or not tensors:
        return
    sums = torch.stack([_fingerprint(tensor).cpu() for tensor in tensors], dim=1).nan_to_num()
    low, high = sums.clone(), sums.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    for tensor, differs in zip(tensors, (low != high).any(dim=0).tolist(), strict=True):
        if differs:
            dist.broadcast(tensor, src=0)


def _fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().flatten()
    places = torch.arange(len(values), device=values.device, dtype=values.dtype) % 251
    return torch.stack([values.sum(), (values * places).sum()])


class SharedBuffers:
    """Buffers that forward passes change, such as running means: each rank's are its own until `follow`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.changing = any(True for _ in self._mutable())

    def follow(self) -> None:
        """Give all ranks rank 0's. Called by all ranks together."""
        if not self.changing:
            return
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in self._mutable():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        for buffers in kinds.values():
            flat = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(flat, src=0)
            parts = flat.split([buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view_as(buffer))

    def _mutable(self) -> Any:
        # Masks are of truth values, and nothing changes them.
        return (buffer for buffer in self.model.buffers() if buffer.dtype != torch.bool)
