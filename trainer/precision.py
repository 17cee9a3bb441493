"""In which arithmetic the model computes. The weights and the optimizer's state stay in fp32 always."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .errors import UsageError


def check(precision: str, device: torch.device) -> None:
    """Raise UsageError when `device` cannot compute in `precision`."""
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError(
            f"--precision bf16: a {torch.cuda.get_device_name(device)} has no bfloat16; use fp32"
        )


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context for forward and loss."""
    if precision == "bf16":
        context: AbstractContextManager[Any] = torch.autocast(device.type, dtype=torch.bfloat16)
        return context
    return nullcontext()
