"""The scale of the loss under fp16, found by trying.

Gradients are smaller than what they are the gradients of, and below 6e-8 a float16 is zero. So the loss is
multiplied with as large a number as lets no gradient pass 65504, and the gradients are divided by it when
they are in fp32 again. When one does get infinite, the step is left out and the scale lowered; after many
good steps it is tried higher (Micikevicius et al., "Mixed Precision Training", ICLR 2018).

All of it is computed on the device: the host waits for nothing. Every rank computes the same from the same
sums. Scales are powers of two, so that dividing by them is exact.
"""

from __future__ import annotations

from typing import Any

import torch

START = 2.0**16
SMALLEST = 2.0**-14
LARGEST = 2.0**24

GROWTH_STEPS = 2000
"""Good steps in a row after which the scale is doubled."""

BACKOFF, FIRST_BACKOFF = 0.5, 1 / 16
"""What lowers the scale, and what does until a first step was good.

What is scaled is a sum over samples or tokens, of which nobody knows how many: the way down can be long.
"""


class LossScale:
    """`scale` is what the sum of the losses of a micro-batch is multiplied with."""

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), START, device=device)
        self.good_steps = torch.zeros((), device=device)
        """Since the scale has last changed."""
        self.found = torch.zeros((), device=device)
        """1 as soon as a step was good."""

    def update(self, counted: torch.Tensor, good: torch.Tensor) -> None:
        """Draw the conclusion from a step. Both are truth values on the device.

        `counted` is false for a step whose loss itself was not finite, which tells nothing about the scale;
        `good` is whether the gradients of the others were finite.
        """
        over, good = counted & ~good, counted & good
        backoff = torch.where(self.found > 0, BACKOFF, FIRST_BACKOFF)
        steps = torch.where(over, 0.0, self.good_steps + good)
        grown = steps >= GROWTH_STEPS
        factor = torch.where(over, backoff, torch.where(grown, 2.0, 1.0))
        self.scale.mul_(factor).clamp_(SMALLEST, LARGEST)
        self.good_steps.copy_(torch.where(grown, 0.0, steps))
        self.found.copy_(torch.maximum(self.found, good.float()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it; filling these tensors is enough to restore it."""
        return {"scale": self.scale, "good_steps": self.good_steps, "found": self.found}
