"""Pipeline parallel: each rank holds layers that follow each other, and micro-batches pass through them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import build_stage
from torch.utils.data import default_collate

from .. import activations, compiling
from ..config import Config
from ..contract import Task, default_forward
from ..data import to_device
from ..errors import JobError, UsageError
from ..world import World
from .agreement import same_weights
from .gradients import Gradients
from .layout import Layout, stages
from .message import MessageStrategy
from .stages import Passing, Stage, cut, tree

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class PpStrategy(MessageStrategy):
    """torch's pipelining of a traced model. The loss is known to the last rank, and told to the others."""

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """See `Strategy`."""
        return stages(cfg, world)

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        super().__init__(task, cfg, world, accumulation, dataset)
        _check(task, cfg, world, accumulation)
        count = self.layout.stages
        owners = [number % world.size for number in range(count)]
        self.last = world.rank == world.size - 1
        whole = self.build_model()
        _refuse_extra_state(whole, task)
        same_weights(whole)
        inputs = model_inputs(_example(dataset, task, cfg), task)
        self.shapes = [tuple(value.shape) for value in inputs]
        pipe = cut(whole, inputs, count, task)
        own = {
            number: Stage(pipe.get_stage_module(number), cfg.precision, world.device)
            for number, owner in enumerate(owners)
            if owner == world.rank
        }
        for number, module in own.items():
            self.economise_stage(module.part, f"job {task.name}: stage {number}")
        ends = [build_stage(module, number, pipe.info(), world.device) for number, module in own.items()]
        self.passing: Passing | None = None
        if cfg.eval_every:
            self.passing = Passing(cut(whole.eval(), inputs, count, task), own, owners, world.device)
        names = whole.state_dict().keys()
        state = {
            name.removeprefix("part."): value for module in own.values() for name, value in _tensors(module)
        }
        if world.rank == 0:
            # What no step uses is in no stage, and belongs into checkpoints all the same.
            used = {name for number in range(count) for name, _ in _tensors(pipe.get_stage_module(number))}
            rest = tree({name: value for name, value in _tensors(whole) if name not in used})
            state |= dict(_tensors(rest.to(world.device)))
        self.model = tree({name: value for name, value in state.items() if name in names})
        self.elsewhere = frozenset(names) - frozenset(state)
        self.optimizer = self.build_optimizer(self.model)
        self.gradients = Gradients(self.model.parameters(), 1)
        self.schedule = SCHEDULES[cfg.pipeline_schedule](
            ends if count > world.size else ends[0], accumulation, loss_fn=self._loss, scale_grads=False
        )
        few = "return_outputs" in inspect.signature(self.schedule.step).parameters
        self.options: dict[str, Any] = {"return_outputs": False} if few else {}
        self.batches: list[Any] = []
        self.totals = torch.zeros(3, device=world.device)

    def economise(self, model: Any) -> None:
        """See `Strategy`. What is traced is the model as the job made it."""

    def economise_stage(self, part: Any, what: str) -> None:
        """Save memory and time in a stage: of a micro-batch it keeps what it was given, and no more."""
        if self.cfg.activation_checkpointing == "yes":
            activations.replace_forward(part, activations.recomputing, what)
        if self.cfg.compile == "yes":
            activations.replace_forward(part, compiling.compiled, what)

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        self.batches = list(batches)
        self.totals = torch.zeros(3, device=self.world.device)
        self.totals[2] = asked
        given = [self._inputs(batch) for batch in self.batches]
        inputs: tuple[Any, ...] = ()
        if self.world.rank == 0:
            inputs = tuple(torch.cat(column) for column in zip(*given, strict=True))
        # The schedule cuts inputs and targets into micro-batches: of targets it gets the numbers only.
        target = {"target": torch.arange(self.accumulation)} if self.last else {}
        self.schedule.step(*inputs, **target, **self.options)
        self.batches = []
        return self.tell(self.totals)

    def _inputs(self, batch: Any) -> tuple[Any, ...]:
        """What of `batch` the model is called with. Raises JobError, on all ranks, for another shape."""
        inputs = model_inputs(batch, self.task)
        shapes = [tuple(value.shape) for value in inputs]
        if shapes != self.shapes:
            raise JobError(
                f"job {self.task.name}: --strategy pp cuts the model for inputs of one shape, and they are "
                f"{shapes} in one micro-batch and {self.shapes} in another; let collate pad all to one "
                "length, or use another strategy"
            )
        return inputs

    def _loss(self, output: Any, number: torch.Tensor) -> Any:
        batch = self.batches[int(number)]
        _, loss, count = self.compute(lambda *_: output, batch)
        self.totals[:2] += torch.stack([loss.detach().float(), count])
        return self.scaled(loss)

    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """See `Strategy`."""
        assert self.passing is not None  # the loop evaluates where the options say so
        (output,) = self.passing.run(*self._inputs(batch))
        told: list[Any] = [None]
        if self.last:
            output, loss, count = self.compute(lambda *_: output, batch)
            extra = self.task.evaluate(output, batch) if self.task.evaluate is not None else {}
            pairs = {"loss": (loss, count), **extra}
            told = [{name: (float(total), float(many)) for name, (total, many) in pairs.items()}]
        dist.broadcast_object_list(told, src=self.world.size - 1)
        found: dict[str, tuple[Any, Any]] = told[0]
        return found


def model_inputs(batch: Any, task: Task) -> tuple[Any, ...]:
    """What of `batch` the model is called with. Raises JobError for what cannot be cut into micro-batches."""
    inputs = tuple(batch[:-1]) if isinstance(batch, tuple | list) else (batch,)
    odd = next((value for value in inputs if not isinstance(value, torch.Tensor)), None)
    if odd is not None:
        raise JobError(
            f"job {task.name}: --strategy pp feeds the model tensors only, and a batch has a "
            f"{type(odd).__name__}"
        )
    return inputs


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _check(task: Task, cfg: Config, world: World, accumulation: int) -> None:
    if task.forward is not default_forward:
        raise JobError(
            f"job {task.name}: --strategy pp cuts the model's own forward, so the job cannot have one; leave "
            "forward(model, batch) out, or use another strategy"
        )
    if accumulation < world.size:
        raise UsageError(
            f"--strategy pp on {world.size} ranks needs {world.size} micro-batches a step or more, and there "
            f"are {accumulation}: raise --accumulation, or lower --micro-batch"
        )
    if cfg.pipeline_schedule == "interleaved" and accumulation % world.size:
        raise UsageError(
            f"--pipeline-schedule interleaved on {world.size} ranks takes a multiple of {world.size} "
            f"micro-batches a step, and not {accumulation}"
        )
    if cfg.global_batch is not None and cfg.global_batch % int(cfg.micro_batch):
        raise UsageError(
            f"--strategy pp takes micro-batches of one size: a global batch of {cfg.global_batch} is not a "
            f"multiple of {cfg.micro_batch}"
        )


def _refuse_extra_state(model: Any, task: Task) -> None:
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise JobError(
                f"job {task.name}: {name or 'the model'} has get_extra_state, whose state is lost where "
                "--strategy pp traces the model: keep it in a buffer, or use another strategy"
            )


def _example(dataset: Any, task: Task, cfg: Config) -> Any:
    samples = [dataset[number % len(dataset)] for number in range(int(cfg.micro_batch))]
    return to_device((task.collate or default_collate)(samples), torch.device("cpu"))
