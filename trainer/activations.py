"""Saves memory for time: what a block computes is thrown away, and computed again in the backward pass.

A block is given a class of its own with another `forward`, and stays where it is. Nothing is wrapped around
it, so that names in checkpoints are the job's own, and what others hook onto its call stays outside of what
is computed twice: gathering of shards under fsdp, for instance, happens around it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .contract import Task
from .errors import JobError
from .strategies import blocks


def recompute_blocks(model: Any, task: Task) -> None:
    """Let each block of `model` keep its inputs only. Raises JobError when the model has no blocks.

    What is drawn at random, such as dropout, is drawn alike the second time. What a block counts in buffers,
    such as running means, it counts twice.
    """
    found = blocks.find(model, task)
    if not found:
        raise JobError(
            f"job {task.name}: --activation-checkpointing yes computes the model's blocks again, and no "
            'repeated blocks were found; name them in the job file, as in BLOCKS = ["layers"], or leave the '
            "option out"
        )
    for name, block in found.items():
        replace_forward(block, recomputing, f"job {task.name}: {name}")


def replace_forward(module: Any, make: Any, what: str) -> None:
    """Give `module` the class that `make` makes of its own. Raises JobError when that could not act.

    A class, and not an attribute of the one module: copies that torch's DataParallel makes of a module share
    its class, and would else compute with the parameters of the original.
    """
    if "forward" in vars(module):
        raise JobError(
            f"{what} has a forward that was put onto it from outside, which cannot be replaced; define it in "
            "the class"
        )
    module.__class__ = make(type(module))


@functools.cache
def recomputing(cls: Any) -> Any:
    """A class like `cls` whose forward is computed again in the backward pass. One and the same each time."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return cls.forward(self, *inputs, **named)
        return checkpoint(cls.forward, self, *inputs, use_reentrant=False, **named)

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
