"""Cuts a job's model into stages: torch traces it, and splits what it has traced in front of some blocks.

A traced model is fixed: to the shape of its inputs, and to training or evaluation. So it is traced once for
each, and what evaluates borrows the parameters of what trains.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import Pipe, SplitPoint, pipeline
from torch.func import functional_call

from ..contract import Task
from ..errors import JobError
from ..precision import autocast
from . import blocks


class Stage(nn.Module):
    """A part of the model, in the precision of the run; what it passes on has the type that was traced."""

    def __init__(self, part: Any, precision: str, device: torch.device) -> None:
        super().__init__()
        self.part = part
        self.precision = precision
        self.device = device
        self.graph = part.graph  # of which torch reads the shapes of what comes and goes
        for node in part.graph.nodes:
            if isinstance(node.meta.get("val"), torch.Tensor):
                node.meta["val"] = node.meta["val"].contiguous()  # as what travels between ranks has to be
        self.traced = _traced_output(part)

    def forward(self, *inputs: Any) -> Any:
        """What the part gives."""
        with autocast(self.precision, self.device):
            output = self.part(*inputs)
        if isinstance(output, torch.Tensor):
            return _as_traced(output, self.traced)
        return type(output)(map(_as_traced, output, self.traced))


def _as_traced(value: Any, traced: Any) -> Any:
    return value.to(traced.dtype).contiguous() if isinstance(value, torch.Tensor) else value


def cut(model: Any, inputs: tuple[Any, ...], count: int, task: Task) -> Pipe:
    """`model` in `count` stages, each with as many of the repeated blocks. Raises JobError."""
    found = list(blocks.find(model, task))
    if len(found) < count:
        raise JobError(
            f"job {task.name}: its model has {len(found)} blocks, too few for {count} stages; start fewer "
            "ranks, or name the blocks in BLOCKS"
        )
    starts = [found[number * len(found) // count] for number in range(1, count)]
    _refuse_tied(model, task)
    _refuse_output(copy.deepcopy(model), inputs, task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
        # Tracing changes the model that it is given.
        pipe = pipeline(
            copy.deepcopy(model), mb_args=inputs, split_spec=dict.fromkeys(starts, SplitPoint.BEGINNING)
        )
    _refuse(pipe, task)
    return pipe


def _refuse_tied(model: Any, task: Task) -> None:
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            raise JobError(
                f"job {task.name}: {other} and {name} are one tensor, which --strategy pp would have on two "
                "ranks; untie them, or use another strategy"
            )


def _refuse_output(model: Any, inputs: tuple[Any, ...], task: Task) -> None:
    # Nothing is computed. What is traced does not tell a dictionary from what is in it.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        output = model(*inputs)
    if not isinstance(output, torch.Tensor):
        raise JobError(
            f"job {task.name}: --strategy pp needs a model that returns one tensor, and this one returns a "
            f"{type(output).__name__}"
        )


def _refuse(pipe: Pipe, task: Task) -> None:
    holder: dict[str, int] = {}
    for number in range(pipe.num_stages):
        for name, _ in pipe.get_stage_module(number).named_parameters():
            if holder.setdefault(name, number) != number:
                raise JobError(
                    f"job {task.name}: {name} is used in stages {holder[name]} and {number} of the pipeline, "
                    "and is on one rank only; untie the weights, or use another strategy"
                )
    for number, node in enumerate(_calls(pipe)):
        given = [argument.name for argument in node.all_input_nodes if argument.op == "placeholder"]
        if number and given:
            raise JobError(
                f"job {task.name}: stage {number} of the pipeline uses the input {given[0]!r} of the model, "
                "which only the first stage gets; use another strategy"
            )


def _calls(pipe: Pipe) -> list[Any]:
    return [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]


def _traced_output(part: Any) -> Any:
    """What `part` gives, as tensors without content."""
    end = next(node for node in reversed(part.graph.nodes) if node.op == "output")
    return fx.node.map_arg(end.args[0], lambda node: node.meta["val"])


def tree(entries: dict[str, Any]) -> Any:
    """A module that has these parameters and buffers under these names, and does nothing."""
    root = nn.Module()
    for name, value in entries.items():
        *path, leaf = name.split(".")
        module = root
        for word in path:
            if word not in module._modules:
                module.add_module(word, nn.Module())
            module = module._modules[word]
        if isinstance(value, nn.Parameter):
            module.register_parameter(leaf, value)
        else:
            module.register_buffer(leaf, value)
    return root


class Passing(fx.Interpreter):
    """Runs a cut model forward, stage by stage: the rank that holds one computes it and tells the others."""

    def __init__(self, pipe: Pipe, own: dict[int, Any], owners: Sequence[int], device: torch.device) -> None:
        super().__init__(pipe.split_gm, garbage_collect_values=False)
        self.own = own
        """Number of stage -> the module that trains it here."""
        self.owners = owners
        self.device = device
        for module in pipe.split_gm.modules():
            # Its parameters are borrowed: room for those of the whole model is not needed.
            for name, parameter in module._parameters.items():
                module._parameters[name] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer.to(device)
        self.numbers = {node: number for number, node in enumerate(_calls(pipe))}

    def run_node(self, n: Any) -> Any:
        """Compute `n`, or learn from another rank what it is."""
        if n.op != "call_module":
            return super().run_node(n)
        number = self.numbers[n]
        values: Any = None
        if number in self.own:
            training = self.own[number]
            evaluating = Stage(self.fetch_attr(n.target), training.precision, self.device)
            state = dict(training.named_parameters()) | dict(training.named_buffers())
            values = functional_call(evaluating, state, self.fetch_args_kwargs_from_env(n)[0])
        if number == len(self.owners) - 1:
            return values  # only its rank asks
        shapes = _traced_output(self.fetch_attr(n.target))
        several = not isinstance(shapes, torch.Tensor)
        sent = []
        for place, traced in enumerate(shapes if several else [shapes]):
            value = (values[place] if several else values) if values is not None else None
            if value is None:
                value = torch.empty(traced.shape, dtype=traced.dtype, device=self.device)
            value = value.contiguous()
            dist.broadcast(value, src=self.owners[number])
            sent.append(value)
        return tuple(sent) if several else sent[0]
