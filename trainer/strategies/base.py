"""What the loop asks of a strategy. The loop knows no model, no wrapper and no communication; this does.

A step is three calls: `accumulate` runs forward and backward over this rank's micro-batches,
`finish_gradients` turns what has been summed up into the gradient of the mean loss and clips it, `apply`
moves the weights. `evaluate` is for batches that nothing is learned from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from .. import activations, compiling, flops
from ..config import Config
from ..contract import Task
from ..errors import JobError
from ..optim import adamw
from ..precision import autocast, scaler
from ..world import World
from .layout import Layout, data_parallel

COUNTED = 8
"""Samples whose FLOPs are counted, at most: they may differ in length."""


class Strategy(ABC):
    """A model and its optimizer, spread over the ranks in one way.

    Checkpoints are made of what `state` returns, under the job's own parameter names, so that any strategy
    resumes from any other's.
    """

    model: Any
    optimizer: Any

    parameter_count: int
    """Numbers in all parameters of the whole model."""

    elsewhere: frozenset[str] = frozenset()
    """Names in the whole model's state of what other ranks hold and this one has no part of."""

    def __init__(self, task: Task, cfg: Config, world: World, accumulation: int, dataset: Any = ()) -> None:
        """`dataset` is that of the training, for strategies that need to see a batch before they start."""
        self.task = task
        self.cfg = cfg
        self.world = world
        self.layout = self.divide(cfg, world)
        self.dataset = dataset
        self.accumulation = accumulation
        self.counting: flops.Counting | None = None
        """Of the model's FLOPs, on rank 0 where they can be compared with what the GPU could do."""
        self.scaler = scaler(cfg.precision, world.device)
        """Of the loss: `accumulate` multiplies with it, `finish_gradients` divides by it; or None."""
        self._loss_checked = False

    @staticmethod
    def divide(cfg: Config, world: World) -> Layout:
        """How the ranks are divided. Raises UsageError when they cannot be."""
        return data_parallel(cfg, world)

    @abstractmethod
    def accumulate(self, batches: Iterable[Any], asked: torch.Tensor) -> torch.Tensor:
        """Add up the gradients of this rank's `accumulation` micro-batches, and those of all ranks.

        `asked` is 1 where somebody wants this rank to stop, else 0. Returns four numbers on the device: loss
        sum, count and requests to stop of all ranks together, and the loss sum of this rank alone.
        """

    @abstractmethod
    def finish_gradients(self, count: torch.Tensor) -> torch.Tensor:
        """Make the gradients those of the mean over `count` (all ranks' together), and clip them.

        Returns their norm before clipping, over all parameters on all ranks.
        """

    @abstractmethod
    def apply(self, skip: torch.Tensor | None) -> None:
        """Take the optimizer's step and clear the gradients. No weight changes if `skip` is not zero."""

    def discard(self) -> None:
        """Clear the gradients and leave everything as it is. Called by all ranks together."""
        self.clear()

    def clear(self) -> None:
        """Let the next step start without gradients."""
        # Not the optimizer's: a job's own may have been given some of the parameters only.
        self.model.zero_grad(set_to_none=True)

    def scaled(self, loss: Any) -> Any:
        """What the backward pass starts from."""
        return loss if self.scaler is None else loss.float() * self.scaler.scale

    def unscaled(self, share: torch.Tensor) -> torch.Tensor:
        """`share`, which gradients are multiplied with, with the scale of the loss divided out."""
        return share if self.scaler is None else share / self.scaler.scale

    @abstractmethod
    def evaluate(self, batch: Any) -> dict[str, tuple[Any, Any]]:
        """Sum and count of the loss, and of what the job's `evaluate` adds, for this rank's `batch`."""

    @property
    @abstractmethod
    def replica_ranks(self) -> frozenset[int]:
        """The ranks that together hold the whole model and optimizer, this one among them.

        A host on which all of these are can write and read a checkpoint without the other hosts.
        """

    @property
    def can_skip(self) -> bool:
        """Whether `apply` can be given `skip`. If not, the host has to look at each step before it."""
        return bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint holds, `model` and `optimizer`, each value under the job's own parameter names.

        And the optimizer's groups: of these, this run's own hold, however it groups them. Called by all ranks
        together.
        """
        model, optimizer = get_state_dict(self.model, self.optimizer)
        groups = {"param_groups": optimizer.pop("param_groups")}
        state = {"model": model, "optimizer": optimizer}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state()
        return state, groups

    def restore(self, state: dict[str, Any], groups: dict[str, Any]) -> None:
        """Take over what `state` returned, after its tensors were filled. Called by all ranks together."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"] | groups,
        )

    def forget_moments(self, names: Collection[str]) -> None:
        """Let the optimizer have no state of the parameters of these names, as before they are first used."""
        for name, parameter in self.model.named_parameters():
            if name in names:
                self.optimizer.state.pop(parameter, None)

    def build_model(self) -> Any:
        """The job's model, still where the job made it. Raises JobError."""
        model = self.task.build_model(self.cfg)
        if not isinstance(model, torch.nn.Module):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise JobError(
                f"job {self.task.name}: build_model returned {what}, not a torch.nn.Module: return a model, "
                "such as torch.nn.Linear(4, 1)"
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise JobError(f"job {self.task.name}: build_model returned a model without parameters to train")
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        if self.world.first and flops.peak(self.cfg.precision, self.world.device) is not None:
            samples = min(int(self.cfg.micro_batch), COUNTED)
            self.counting = flops.Counting(model, self.task, self.dataset, samples)
        self.economise(model)
        return model

    def economise(self, model: Any) -> None:
        """Save memory and time in `model` as the options say, before it is spread. Raises JobError."""
        if self.cfg.activation_checkpointing == "yes":
            activations.recompute_blocks(model, self.task)
        if self.cfg.compile == "yes":
            compiling.compile_model(model, self.task)

    def build_optimizer(self, model: Any) -> Any:
        """The job's optimizer, or AdamW. Raises JobError."""
        if self.task.build_optimizer is None:
            return adamw(model, self.cfg)
        optimizer = self.task.build_optimizer(model, self.cfg)
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__
            raise JobError(
                f"job {self.task.name}: build_optimizer returned a {kind}, not a torch.optim.Optimizer"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise JobError(
                f"job {self.task.name}: build_optimizer returned LBFGS, which wants the loss several times a "
                "step, and here it is computed once; use another optimizer, such as torch.optim.AdamW"
            )
        return optimizer

    def compute(self, model: Any, batch: Any) -> tuple[Any, Any, Any]:
        """Output, loss sum and count of `batch`, the latter two as tensors without dimensions.

        Raises JobError when the job's loss is not such a pair.
        """
        with autocast(self.cfg.precision, self.world.device):
            output = self.task.forward(model, batch)
            result = self.task.loss(output, batch)
        if not self._loss_checked:
            self._check_loss(result)
        loss, count = result
        if not isinstance(count, torch.Tensor):
            # Not torch.tensor: a number that is copied to a GPU may wait for what the GPU is at.
            count = torch.full((), count, device=loss.device)
        # No view of it: hooks on what a module returns could be lost with a view.
        return output, loss if loss.ndim == 0 else loss.sum(), count.reshape(()).to(torch.float32)

    def _check_loss(self, result: Any) -> None:
        what = f"job {self.task.name}: loss(output, batch) must return (loss_sum, count)"
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise JobError(
                f"{what}, and returned a {type(result).__name__}: return both, such as\n    return "
                'torch.nn.functional.mse_loss(output, target, reduction="sum"), target.numel()'
            )
        loss, count = result
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise JobError(f"{what}: the first must be a tensor with the sum of the losses, a single number")
        if not isinstance(count, int | float) and not (
            isinstance(count, torch.Tensor) and count.numel() == 1
        ):
            raise JobError(f"{what}: the second must say how many losses were summed, a single number")
        if float(count) < 0:
            raise JobError(f"{what}: the second says how many losses were summed, and it is {float(count):g}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise JobError(
                f"{what}: the first does not depend on the model, so nothing can be learned from it"
            )
        self._loss_checked = True
