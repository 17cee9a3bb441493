"""DeepSpeed's ZeRO: a rank steps a part of the weights (1), sums that part's gradients (2), holds it (3)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from ..config import Config
from ..contract import Task
from ..world import World
from . import zero_engine
from .agreement import SharedBuffers, same_weights
from .mesh import Step
from .message import MessageStrategy
from .zero_gradients import Partition
from .zero_state import Records


class ZeroStrategy(MessageStrategy):
    """A model in DeepSpeed's engine. Gradients arrive as the mean over the ranks, in one's partition each."""

    stage: int
    gradients: Partition
    """Of this rank."""

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        deepspeed = zero_engine.load(cfg.strategy, world.device)
        super().__init__(task, cfg, world, accumulation, dataset)
        self.model = self.build_model()
        zero_engine.refuse_other_types(self.model, task.name, cfg.strategy)
        same_weights(self.model)
        step_module: Any = Step(self)
        if self.stage < 3:
            step_module.to(world.device)
        self.optimizer = self.build_optimizer(self.model)
        zero_engine.refuse_optimizer(self.optimizer, task.name, cfg.strategy)
        config = zero_engine.options(cfg, world, self.stage, accumulation, self.parameter_count)
        os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
        deepspeed.init_distributed(verbose=False)
        self.records = Records(deepspeed, self.model, world)
        if self.stage == 3:
            # Parameter by parameter, so that on a GPU there need only ever be room for a part of the model.
            deepspeed.zero.Init(module=step_module, config_dict_or_path=config, dtype=torch.float32)
            for buffer in self.model.buffers():
                buffer.data = buffer.data.to(world.device)
        self.engine = deepspeed.initialize(model=step_module, optimizer=self.optimizer, config=config)[0]
        self.gradients = Partition(self.engine.optimizer, self.stage)
        self.records.follow(self.engine.optimizer, self.stage)
        self.buffers = SharedBuffers(self.model)

    @property
    def can_skip(self) -> bool:
        """See `Strategy`. DeepSpeed's step looks at its gradients on the host anyway."""
        return False

    @property
    def elsewhere(self) -> frozenset[str]:  # type: ignore[override]
        """See `Strategy`."""
        return self.records.elsewhere

    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """See `Strategy`. At stage 1 ranks add up gradients in the last backward pass, else in each."""
        totals = torch.zeros(3, device=self.world.device)
        for index, batch in enumerate(batches, start=1):
            self.engine.set_gradient_accumulation_boundary(index == self.accumulation)
            _, loss, count = self.engine(batch)
            # The sum of the losses, as it is: what it is divided by is known when all micro-batches are.
            self.engine.backward(self.scaled(loss), scale_wrt_gas=False)
            totals[:2] += torch.stack([loss.detach().float(), count])
        totals[2] = asked
        self.buffers.follow()
        return self.tell(totals)

    def apply(self, skip: torch.Tensor | None) -> None:
        """See `Strategy`."""
        if skip is not None and bool(skip):
            self.discard()
            return
        self.engine.step()
        self.gradients.clear()

    def discard(self) -> None:
        """See `Strategy`."""
        self.gradients.discard()
        self.gradients.clear()

    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """See `Strategy`."""
        output, loss, count = self.engine(batch)
        extra = self.task.evaluate(output, batch) if self.task.evaluate is not None else {}
        return {"loss": (loss, count), **extra}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `Strategy`. Each rank has some whole parameters, on the CPU, and no groups."""
        state = self.records.read()
        if self.scaler is not None:
            state["scaler"] = self.scaler.state()
        return state, {}

    def restore(self, state: dict[str, Any], groups: dict[str, Any]) -> None:  # noqa: ARG002
        """See `Strategy`."""
        self.records.write(state)


class Zero1Strategy(ZeroStrategy):
    """Weights and gradients are whole on every rank; the optimizer's state is divided."""

    stage = 1


class Zero2Strategy(ZeroStrategy):
    """Weights are whole on every rank; gradients and the optimizer's state are divided."""

    stage = 2


class Zero3Strategy(ZeroStrategy):
    """Everything is divided, and a module's weights are gathered while it computes."""

    stage = 3
