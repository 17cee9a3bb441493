"""Fully sharded: each rank keeps a part of every parameter, and gathers a block's while that computes."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..config import Config
from ..errors import JobError
from ..precision import HALVES
from ..world import World
from . import blocks
from .layout import Layout, copies_of_shards
from .mesh import MeshStrategy


class FsdpStrategy(MeshStrategy):
    """torch's FSDP2. Parameters outside of all blocks are a unit of their own, whole during a whole step."""

    def spread(self) -> None:
        """See `MeshStrategy`."""
        self.shard(self.mesh(("shard", self.world.size)))

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard over `mesh`; with two axes, copies along the first and shards along the second."""
        units = blocks.find(self.model, self.task)
        blocks.refuse_tied(self.model, units, self.task, self.cfg.strategy)
        self._refuse_odd(units)
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": _policy(self.cfg.precision)}
        if self.cfg.reshard_after_forward != "auto":
            options["reshard_after_forward"] = self.cfg.reshard_after_forward == "yes"
        for unit in (*units.values(), self.step_module):
            fully_shard(unit, **options)

    def _refuse_odd(self, units: dict[str, Any]) -> None:
        """Raise JobError for parameters that cannot be cut, or not be gathered together."""
        first: dict[str, tuple[str, Any]] = {}
        for name, parameter in self.model.named_parameters():
            advice = f"which --strategy {self.cfg.strategy} cannot shard"
            if parameter.ndim == 0:
                raise JobError(
                    f"job {self.task.name}: {name} is a single number without dimensions, {advice}; make it "
                    "torch.nn.Parameter(torch.ones(1)), or use ddp"
                )
            unit = next((block for block in units if name.startswith(f"{block}.")), "")
            if not parameter.requires_grad:
                continue
            other, dtype = first.setdefault(unit, (name, parameter.dtype))
            if dtype != parameter.dtype:
                raise JobError(
                    f"job {self.task.name}: {other} is {dtype} and {name} is {parameter.dtype}, {advice} "
                    "together; give both one type, or use ddp"
                )

    def set_gradient_sync(self, wanted: bool) -> None:
        """See `MeshStrategy`."""
        self.step_module.set_requires_gradient_sync(wanted)

    def after_evaluation(self) -> None:
        """See `MeshStrategy`. Checkpoints are made of shards, and what was gathered must not be found."""
        for module in self.step_module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class HsdpStrategy(FsdpStrategy):
    """Some whole copies, each in shards: gathering stays within a copy, only gradients go between them."""

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """See `Strategy`."""
        return copies_of_shards(cfg, world)

    def spread(self) -> None:
        """See `MeshStrategy`."""
        copies = self.layout.replicas
        self.shard(self.mesh(("copy", copies), ("shard", self.world.size // copies)))

    @property
    def replica_ranks(self) -> frozenset[int]:
        """See `Strategy`. Those of this rank's copy."""
        size = self.world.size // self.layout.replicas
        first = self.world.rank // size * size
        return frozenset(range(first, first + size))


def _policy(precision: str) -> MixedPrecisionPolicy:
    if precision == "fp32":
        return MixedPrecisionPolicy()
    # Weights travel in 16 bits, gradients add up in fp32. Inputs are left to autocast: a job's targets and
    # coordinates must not lose their digits.
    return MixedPrecisionPolicy(
        param_dtype=HALVES[precision], reduce_dtype=torch.float32, cast_forward_inputs=False
    )
