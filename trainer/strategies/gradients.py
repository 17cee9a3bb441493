"""The norm of gradients of which each rank holds some, and some are held by several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def local(tensor: Any) -> torch.Tensor:
    """This rank's part of `tensor`, sharing its memory."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def holders(tensor: Any, ranks: int) -> int:
    """How many of the `ranks` hold the same part of `tensor` as this one."""
    if not isinstance(tensor, DTensor):
        return ranks
    parts = 1
    for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        # Also true of strided shards, which torch keeps as another kind.
        parts *= 1 if placement.is_replicate() else size
    return ranks // parts


class Gradients:
    """The gradients of `parameters`, which all `ranks` hold together."""

    def __init__(self, parameters: Iterable[Any], ranks: int) -> None:
        self._held: dict[int, list[Any]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                self._held.setdefault(holders(parameter, ranks), []).append(parameter)

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """This rank's share of the squared norm of all gradients: summed over the ranks it is the whole.

        Called by all ranks together.
        """
        total = torch.zeros(1, device=device)
        for count, parameters in self._held.items():
            parts = _parts(parameters)
            if parts:
                norms = torch.stack(torch._foreach_norm(parts))
                total += norms.float().square().sum() / count
        return total

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply all gradients by `factor`."""
        for parameters in self._held.values():
            parts = _parts(parameters)
            if parts:
                torch._foreach_mul_(parts, factor)


def _parts(parameters: list[Any]) -> list[torch.Tensor]:
    parts = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            # That of a shared embedding arrives whole.
            gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)
        parts.append(local(gradient))
    return parts
