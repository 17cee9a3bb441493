"""The default optimizer, and the learning rate of every step."""

from __future__ import annotations

from typing import Any

import torch

from .config import Config
from .schedule import learning_rate_share


def adamw(model: Any, cfg: Config) -> Any:
    """AdamW with weight decay on matrices only: biases, gains and other vectors are not pulled to zero."""
    groups: dict[object, dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = cfg.weight_decay if parameter.ndim >= 2 else 0.0
            # One fused kernel takes only tensors that are spread over the same ranks, or not at all.
            kind = (decay, getattr(parameter, "device_mesh", None))
            groups.setdefault(kind, {"params": [], "weight_decay": decay})["params"].append(parameter)
    # Nor does it know complex numbers.
    fused = all(parameter.is_floating_point() for group in groups.values() for parameter in group["params"])
    return torch.optim.AdamW([*groups.values()], lr=cfg.learning_rate, betas=(0.9, 0.95), fused=fused)


class Schedule:
    """Sets the learning rate of each parameter group, in proportion to the one that it was built with."""

    def __init__(self, optimizer: Any, cfg: Config) -> None:
        self.optimizer = optimizer
        self.highest = [group["lr"] for group in optimizer.param_groups]
        self.warmup, self.steps = cfg.warmup_steps, cfg.steps

    def set(self, step: int) -> None:
        """Prepare the optimizer for `step`."""
        share = learning_rate_share(step, warmup=self.warmup, steps=self.steps)
        for group, highest in zip(self.optimizer.param_groups, self.highest, strict=True):
            group["lr"] = highest * share

    def rate(self, step: int) -> float:
        """The learning rate of the first group in `step`."""
        return float(self.highest[0]) * learning_rate_share(step, warmup=self.warmup, steps=self.steps)
