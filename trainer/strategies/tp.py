"""Tensor parallel: ranks share single layers, as the job's TP_PLAN says, alone or with shards around."""

from __future__ import annotations

import difflib
import fnmatch
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ..config import Config
from ..contract import Task
from ..errors import JobError
from ..world import World
from .fsdp import FsdpStrategy
from .layout import Layout, shards_of_shared_layers, shared_layers
from .mesh import MeshStrategy


class TpStrategy(MeshStrategy):
    """All ranks work on the same samples, each with a part of the layers in the plan."""

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """See `Strategy`."""
        return shared_layers(cfg, world)

    def spread(self) -> None:
        """See `MeshStrategy`."""
        share_layers(self.model, self.task, self.mesh(("tensor", self.world.size)))


class FsdpTpStrategy(FsdpStrategy):
    """Ranks that follow each other share layers; what each then has is sharded over the groups of them."""

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """See `Strategy`."""
        return shards_of_shared_layers(cfg, world)

    def spread(self) -> None:
        """See `MeshStrategy`."""
        mesh = self.mesh(("shard", self.layout.data), ("tensor", self.layout.tensor))
        share_layers(self.model, self.task, mesh["tensor"])
        self.shard(mesh["shard"])


def share_layers(model: Any, task: Task, mesh: DeviceMesh) -> None:
    """Share the layers of the job's plan over `mesh`. Raises JobError when the plan does not fit."""
    layers = matched(model, task)
    _refuse_tied(model, layers, task)
    for name, (layer, way) in layers.items():
        _check(name, layer, way, task, mesh.size())
    parallelize_module(model, mesh, {name: _style(layer, way) for name, (layer, way) in layers.items()})


def _refuse_tied(model: Any, layers: dict[str, Any], task: Task) -> None:
    """Raise JobError when a weight of a layer is another's too: sharing the layer would leave two of them."""
    first: dict[int, str] = {}
    weights = (
        (f"{prefix}.{name}" if prefix else name, parameter)
        for prefix, module in model.named_modules()  # one that is used twice is there once
        for name, parameter in module.named_parameters(recurse=False)
    )
    for name, parameter in weights:
        other = first.setdefault(id(parameter), name)
        shared = next((n for n in (other, name) if n.rpartition(".")[0] in layers), None)
        if other != name and shared is not None:
            raise JobError(
                f"job {task.name}: {other} and {name} are one tensor, and TP_PLAN shares "
                f"{shared.rpartition('.')[0]} among the ranks, which would make them two; untie them, or "
                "leave the layer out of the plan"
            )


def matched(model: Any, task: Task) -> dict[str, tuple[Any, str]]:
    """Name -> layer and `colwise` or `rowwise`. A `*` in a pattern stands for what is between two dots.

    Raises JobError when there is no plan, or one of its patterns names no layer.
    """
    if not task.tp_plan:
        raise JobError(
            f"job {task.name} has no TP_PLAN, which says what layers ranks can share: add one, such as\n"
            '    TP_PLAN = {"blocks.*.mlp.up": "colwise", "blocks.*.mlp.down": "rowwise"}'
        )
    modules = {name: module for name, module in model.named_modules() if name}
    layers = {}
    for pattern, way in task.tp_plan.items():
        found = [name for name in modules if _fits(name, pattern)]
        if not found:
            close = difflib.get_close_matches(pattern, modules, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise JobError(
                f"job {task.name}: TP_PLAN names {pattern!r}, and the model has no such layer{hint}"
            )
        layers.update({name: (modules[name], way) for name in found})
    return layers


def _fits(name: str, pattern: str) -> bool:
    words, patterns = name.split("."), pattern.split(".")
    return len(words) == len(patterns) and all(map(fnmatch.fnmatchcase, words, patterns))


def _check(name: str, layer: Any, way: str, task: Task, ranks: int) -> None:
    if not isinstance(layer, nn.Linear | nn.Embedding):
        raise JobError(
            f"job {task.name}: TP_PLAN names {name}, a {type(layer).__name__}; ranks can share nn.Linear and "
            "nn.Embedding"
        )
    if isinstance(layer, nn.Linear):
        size = layer.out_features if way == "colwise" else layer.in_features
    else:
        size = layer.embedding_dim if way == "colwise" else layer.num_embeddings
    if size % ranks:
        raise JobError(
            f"job {task.name}: {ranks} ranks cannot share {name} {way}: its size of {size} is not a multiple"
        )


def _style(layer: Any, way: str) -> ColwiseParallel | RowwiseParallel:
    if way == "colwise":
        return ColwiseParallel()
    # What a linear layer takes comes from one that is shared colwise; indices every rank has all of.
    return (
        RowwiseParallel(input_layouts=Replicate()) if isinstance(layer, nn.Embedding) else RowwiseParallel()
    )
