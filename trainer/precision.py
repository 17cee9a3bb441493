"""In which arithmetic the model computes. The weights and the optimizer's state stay in fp32 always."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .errors import UsageError
from .loss_scale import LossScale

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check(precision: str, device: torch.device) -> None:
    """Raise UsageError when `device` cannot compute in `precision`."""
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError(
            f"--precision bf16: a {torch.cuda.get_device_name(device)} has no bfloat16; use fp16 or fp32"
        )
    if precision == "fp16" and device.type == "cpu":
        raise UsageError("--precision fp16 is for GPUs, and this is a CPU; use bf16 or fp32")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context for forward and loss."""
    if precision in HALVES:
        context: AbstractContextManager[Any] = torch.autocast(device.type, dtype=HALVES[precision])
        return context
    return nullcontext()


def scaler(precision: str, device: torch.device) -> LossScale | None:
    """What keeps small gradients from getting lost, in the precision that needs it."""
    return LossScale(device) if precision == "fp16" else None
