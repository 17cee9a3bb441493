"""The gradients of this rank's partition, where each stage of ZeRO keeps them until the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch


class Partition:
    """This rank's share of all gradients, between the last backward pass and the step. Shares do not overlap.

    `optimizer` is DeepSpeed's, of `stage` 1, 2 or 3, in fp32.
    """

    def __init__(self, optimizer: Any, stage: int) -> None:
        self._optimizer = optimizer
        self._whole_weights = stage < 3
        self._offloaded: bool = optimizer.cpu_offload if self._whole_weights else optimizer.offload_optimizer
        self._parts: list[torch.Tensor] = []

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """The square of their norm, as one number on `device`."""
        self._parts = self._find()
        if not self._parts:
            return torch.zeros(1, device=device)
        norms = torch.stack(torch._foreach_norm(self._parts))
        return norms.square().sum().view(1).to(device)

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply all of them by `factor`. To be called after `squared_norm`."""
        if self._parts:
            torch._foreach_mul_(self._parts, factor.to(self._parts[0].device))

    def discard(self) -> None:
        """Take them away instead of taking a step: as DeepSpeed does where a loss scale was too high."""
        optimizer = self._optimizer
        if not self._whole_weights:
            optimizer._pre_step()
            optimizer._partition_all_parameters()
            optimizer._overflow_clean_up(optimizer.loss_scale)
            return
        optimizer.zero_grad(set_to_none=True)
        optimizer.micro_step_id = -1
        if self._offloaded:
            optimizer.reset_cpu_buffers()
            return
        for group in optimizer.averaged_gradients:
            optimizer.averaged_gradients[group] = None
            optimizer.all_grad_tensors[group] = None

    def clear(self) -> None:
        """Forget them after the step.

        Where DeepSpeed keeps the memory it is zeroed: a parameter that the next step does not use would
        move again by what is left there.
        """
        if self._parts and (self._offloaded or not self._whole_weights):
            torch._foreach_zero_(self._parts)
        self._parts = []

    def _find(self) -> list[torch.Tensor]:
        optimizer = self._optimizer
        if self._offloaded:
            flat = (
                optimizer.single_partition_of_fp32_groups
                if self._whole_weights
                else optimizer.fp32_partitioned_groups_flat
            )
            return [part.grad for part in flat]
        return [part for group in optimizer.averaged_gradients.values() if group for part in group]
