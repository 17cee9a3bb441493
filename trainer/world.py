"""Where this process stands among the ranks: joining the process group, and leaving it in good order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .errors import NonFiniteError, UsageError
from .member import Member


@dataclass(frozen=True, kw_only=True, slots=True)
class World(Member):
    """This rank, how many there are, and the device that it computes on."""

    device: torch.device
    node: int = 0
    """The number of this host among those of the job."""
    local_size: int = 1
    """How many of the ranks are on this host."""


@contextmanager
def join(choice: str) -> Iterator[World]:
    """Join the group that the launcher's environment describes; without one, be a group of one.

    `choice` is `auto`, `cpu` or `cuda`. Raises UsageError.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    present = [name for name in names if name in os.environ]
    if present and len(present) < len(names):
        missing = ", ".join(name for name in names if name not in present)
        raise UsageError(f"{', '.join(present)} in the environment but not {missing}: start it with torchrun")
    rank, local_rank, size = (int(os.environ[name]) for name in names) if present else (0, 0, 1)
    device = _device(choice, local_rank)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    bound = None if device.type == "cpu" else device
    if present:
        dist.init_process_group(backend, device_id=bound)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)
    try:
        # torchrun calls the number of a node the rank of its group of workers.
        node = int(os.environ.get("GROUP_RANK", "0")) if present else 0
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if present else 1
        yield World(
            rank=rank, local_rank=local_rank, size=size, device=device, node=node, local_size=local_size
        )
    except NonFiniteError:
        leave()
        raise
    leave()


def leave() -> None:
    """Leave the group together with all other ranks. A rank that fails alone just ends."""
    # Without the barrier a rank that is done early tears down connections that others still use: they abort.
    dist.barrier()
    dist.destroy_process_group()


def _device(choice: str, local_rank: int) -> torch.device:
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(f"--device cuda: torch {torch.__version__} sees no GPU here")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UsageError(
            f"local rank {local_rank} has no GPU: this host shows {count}; start at most {count} ranks on it"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
