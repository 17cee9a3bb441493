"""The learning rate of every step, as a share of the highest: arithmetic without torch."""

from __future__ import annotations

import math

FINAL_SHARE = 0.1
"""Share of the highest learning rate that is left at the last step."""


def learning_rate_share(step: int, *, warmup: int, steps: int) -> float:
    """What share of its highest learning rate step number `step` (from 1 on) uses: linear up, cosine down."""
    if step <= warmup:
        return step / warmup
    done = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
