"""How fast training goes: the steps since the last line of progress, and what that line says of them.

Nothing here knows a framework.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .batches import BatchPlan
from .config import Config
from .progress import Progress, Value

LONG_WAIT = 0.1
"""The share of the time that may be spent waiting for data before a line says so."""


class Pace:
    """Counts steps and tokens between two reports. Times are in seconds.

    `waited` is, here and below, how long training has waited for data in all.
    """

    def __init__(self, cfg: Config, plan: BatchPlan, progress: Progress) -> None:
        self.cfg = cfg
        self.plan = plan
        self.progress = progress
        self.begin(0.0)

    def begin(self, waited: float) -> None:
        """Count from here on."""
        self.began = time.perf_counter()
        self.waited = waited
        self.steps = 0
        self.tokens = 0.0
        self.paused = 0.0

    def count(self, tokens: float) -> None:
        """One more step is done."""
        self.steps += 1
        self.tokens += tokens

    def report(
        self,
        step: int,
        *,
        loss: float,
        norm: float,
        learning_rate: float,
        waited: float,
        memory_bytes: int,
        mfu: Callable[[float], float | str],
        more: dict[str, Value],
    ) -> None:
        """Record the steps since the last report, print a line about them, and count anew.

        `mfu` is asked for the share of the hardware's speed that so many samples a second are.
        """
        seconds = max(time.perf_counter() - self.began - self.paused, 1e-9)
        tokens = self.tokens / seconds
        samples = self.steps * self.plan.global_batch / seconds
        waiting = min((waited - self.waited) / seconds, 1.0)
        share = mfu(samples)
        self.progress.record(
            "train",
            step,
            loss=loss,
            tokens_per_second=tokens,
            samples_per_second=samples,
            mfu=share,
            learning_rate=learning_rate,
            grad_norm=norm,
            step_seconds=seconds / self.steps,
            data_wait=waiting,
            memory_bytes=memory_bytes,
            **more,
        )
        width = len(str(self.cfg.steps))
        unit = (
            "samples" if tokens == samples else "tokens"
        )  # where a sample has one target there are no tokens
        self.progress.say(
            f"step {step:{width}}/{self.cfg.steps}  loss {loss:.4f}  grad norm {norm:.3f}  "
            f"lr {learning_rate:.2e}  {tokens:,.0f} {unit}/s  {1000 * seconds / self.steps:.1f} ms/step"
            + (f"  MFU {share:.1%}" if isinstance(share, float) else "")
            + (f"  {waiting:.0%} waiting for data: raise --workers" if waiting > LONG_WAIT else "")
        )
        self.begin(waited)


def is_due(step: int, every: int) -> bool:
    """Whether something that is done every so many steps, 0 for never, is done after `step`."""
    return every > 0 and step % every == 0
