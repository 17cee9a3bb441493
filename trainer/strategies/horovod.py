"""Horovod: as data parallel, with gradients added up by its allreduce instead of torch's.

Horovod adds up tensors in the order in which all ranks have them, while the backward pass goes on, and joins
small ones to messages by itself (HOROVOD_FUSION_THRESHOLD). It is used for that alone: what the ranks agree
on besides travels in torch's own process group, and the optimizer is the job's, as it is: Horovod's wrapper
would build another one without knowing its arguments, and its `broadcast_optimizer_state` takes a step with
an optimizer that has taken none. Horovod has been unmaintained since 2023.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch

from ..config import Config
from ..contract import Task
from ..errors import UsageError
from ..world import World
from .agreement import same_weights
from .compression import LARGEST, Half
from .ddp import DdpStrategy

MIB = 1024 * 1024

INSTALL = "build it with `encamp env build horovod --on HOST`, which later launches find"


class HorovodStrategy(DdpStrategy):
    """Data parallel over Horovod. Every rank holds the whole model."""

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        if cfg.gradient_compression not in ("none", "fp16"):
            raise UsageError(
                f"--gradient-compression {cfg.gradient_compression} is not there under --strategy horovod: "
                "use fp16, or --strategy ddp"
            )
        hvd = load(cfg, world)
        super().__init__(task, cfg, world, accumulation, dataset)
        # Parameters that a step does not use need no care: their gradients are found to be missing.
        self.first_step = self.micro_step.first_step = None
        self.some_unused = True
        self.micro_step.carrier = None
        if world.size > 1:
            same_weights(self.model)
        self.reducer = Reducer(hvd, self.parameters, world, self.compressor)

    def wrap(self) -> Any:
        """The micro-step, which nothing has to wrap."""
        return self.micro_step

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`. Ranks talk to each other during the last backward pass only."""
        sums = torch.zeros(3, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            self.reducer.last = index == self.accumulation
            told = asked if self.reducer.last else torch.zeros_like(asked)
            loss, numbers = self.micro_step(batch, told, self.reducer.last)
            loss.backward()
            sums += numbers
        own_loss = sums[:1].clone()
        sums = self.reducer.finish(sums)
        if self.world.size > 1:
            self.buffers.follow()
        return torch.cat([sums, own_loss])


class Reducer:
    """Adds up the gradients of `parameters` over the ranks, each as soon as it is there.

    What comes back is their mean, as DistributedDataParallel's. While `last` is false nothing is sent.
    """

    def __init__(self, hvd: Any, parameters: list[Any], world: World, compressor: Any) -> None:
        self.last = False
        self._hvd = hvd
        self._parameters = parameters
        self._world = world
        self._compressor: Half | None = compressor
        self._sent: dict[int, tuple[Any, torch.Tensor, Any]] = {}
        """Of each parameter by its place: Horovod's handle, what travels, and what it was multiplied with."""
        if world.size > 1:
            for place, parameter in enumerate(parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(place))

    def finish(self, sums: torch.Tensor) -> torch.Tensor:
        """Wait until all gradients are there. Returns `sums` added up over the ranks."""
        if self._world.size == 1:
            return sums
        missing = [place for place in range(len(self._parameters)) if place not in self._sent]
        used = torch.ones(len(self._parameters), device=sums.device)
        for place in missing:
            parameter = self._parameters[place]
            used[place] = float(parameter.grad is not None)  # an earlier micro-batch may have used it
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._send(place)
        # What nobody has used must have no gradient: an optimizer would let it decay.
        told = self._hvd.allreduce(torch.cat([sums, used]), name="sums", op=self._hvd.Sum)
        for place, (handle, values, factor) in self._sent.items():
            self._hvd.synchronize(handle)
            gradient = self._parameters[place].grad
            if values is not gradient:
                gradient.copy_(values)
            if factor is not None:
                gradient.div_(factor)
        self._sent.clear()
        for place in (told[len(sums) :] == 0).nonzero().flatten().tolist():
            self._parameters[place].grad = None
        return told[: len(sums)]

    def _hook(self, place: int) -> Any:
        def send(_parameter: Any) -> None:
            if self.last:
                self._send(place)

        return send

    def _send(self, place: int) -> None:
        gradient = self._parameters[place].grad
        half, factor = self._compressor, None
        if half is not None and half.learnt:
            factor = half.factor / half.scale
            values = gradient * (factor / self._world.size)
            values = torch.where(values.isinf(), values, values.clamp(-LARGEST, LARGEST)).to(half.kind)
            kind = self._hvd.Sum
        else:
            values, kind = gradient.contiguous(), self._hvd.Average
        handle = self._hvd.allreduce_async_(values.detach(), name=f"gradient.{place}", op=kind)
        self._sent[place] = (handle, values, factor)


def load(cfg: Config, world: World) -> Any:
    """Horovod, with all ranks connected. Raises UsageError when it is missing or sees other ranks."""
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(cfg.bucket_mb * MIB))
    try:
        hvd = importlib.import_module("horovod.torch")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "horovod":
            raise
        raise UsageError(f"--strategy horovod: {sys.executable} has no Horovod; {INSTALL}") from error
    except ImportError as error:
        raise UsageError(
            f"--strategy horovod: the Horovod of {sys.executable} does not fit torch {torch.__version__} "
            f"({error}); {INSTALL}"
        ) from error
    hvd.init()
    if (hvd.rank(), hvd.size()) != (world.rank, world.size):
        raise UsageError(
            f"--strategy horovod: to Horovod this is rank {hvd.rank()} of {hvd.size()}, and to torch it "
            f"is {world.rank} of {world.size}: start it with `encamp launch`, which tells both"
        )
    return hvd
