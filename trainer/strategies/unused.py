"""Parameters that take no part in a loss: DistributedDataParallel has to know whether there are any.

It waits for the gradient of each parameter, or else has to look in every step for which there will be none.
So the first step finds out whether that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

HIDES = "CheckpointFunctionBackward"
"""Of torch's reentrant activation checkpointing, whose parameters cannot be seen from outside."""


def reached(loss: torch.Tensor) -> set[int] | None:
    """The `id` of each parameter that gets a gradient from `loss`; None when that cannot be told."""
    found: set[int] = set()
    ahead: list[Any] = [loss.grad_fn]
    seen = set(ahead)
    while ahead:
        node = ahead.pop()
        if node is None:
            continue
        if node.name() == HIDES:
            return None
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                ahead.append(following)
    return found


class FirstStep:
    """Watches the micro-batches of a first step for what they do not use."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = parameters
        self.used: set[int] = set()

    def watch(self, loss: torch.Tensor, *, last: bool) -> torch.Tensor:
        """`loss` with, in the `last` micro-batch, a gradient of zeros for each parameter that it lacks."""
        found = reached(loss)
        if found is None:
            found = {id(parameter) for parameter in self.parameters}
        self.used |= found
        if last:
            for parameter in self.parameters:
                if id(parameter) not in found:
                    loss = loss + parameter.flatten()[:0].sum()
        return loss

    def conclude(self) -> bool:
        """Whether there are parameters that not every rank has used; those that none has lose their zeros.

        Called by all ranks together, after the backward pass of the last micro-batch.
        """
        device = self.parameters[0].device
        counts = torch.tensor([id(parameter) in self.used for parameter in self.parameters], device=device)
        counts = counts.int()
        dist.all_reduce(counts)
        users: list[int] = counts.tolist()
        for parameter, ranks in zip(self.parameters, users, strict=True):
            if ranks == 0:
                parameter.grad = None
        return min(users) < int(dist.get_world_size())
