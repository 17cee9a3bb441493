"""The training loop under TensorFlow: that of `..loop`, with the same order of samples, words and files.

Here one process decides for all. A strategy may have steps under way; before anything that looks at the
weights they are waited for.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from ..batches import BatchPlan, step_seed
from ..config import Config
from ..errors import CAN_SKIP, CheckpointError, NonFiniteError
from ..folder import Position
from ..pace import Pace, is_due
from ..progress import Progress
from ..schedule import learning_rate_share
from ..stop import StopRequest
from .base import Numbers, Strategy
from .checkpoint import Checkpoints, Save
from .data import Feed, HeldOut
from .devices import peak_memory

PATIENCE = 10
"""Bad steps in a row that are skipped; with this one training ends."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop works with. `held_out` is None without evaluation, `checkpoints` when none are kept."""

    cfg: Config
    plan: BatchPlan
    strategy: Strategy
    feed: Feed
    held_out: HeldOut | None
    checkpoints: Checkpoints | None
    progress: Progress
    stop: StopRequest


class Loop:
    """Trains from `start` on, where `updates` steps have changed the weights. `position` moves along."""

    def __init__(self, parts: Parts, start: Position, updates: int) -> None:
        self.parts = parts
        self.cfg, self.strategy, self.progress = parts.cfg, parts.strategy, parts.progress
        self.position = start
        self.updates = updates
        self.first_step = start.step + 1
        self.saved_step: int | None = None
        self.saving: Save | None = None
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.pace = Pace(self.cfg, parts.plan, parts.progress)

    def run(self) -> bool:
        """Train to the last step or until asked to stop. Returns whether all steps are done.

        Raises NonFiniteError before the weights have taken up a bad gradient, CheckpointError when the
        checkpoint at the end cannot be written, and ClusterError.
        """
        # The first step makes the graph, and its record ends that phase.
        self._tell("compile" if self.cfg.compile == "yes" else "train")
        self.pace.begin(self.parts.feed.waited)
        try:
            for step in range(self.first_step, self.cfg.steps + 1):
                stopping = bool(self.parts.stop)
                self._step(step)
                if self.saving is not None and self.saving.is_over:
                    self._end_save()
                if stopping:
                    self.progress.say(f"asked to stop ({self.parts.stop.signal}): leaving with a checkpoint")
                    break
                if is_due(step, self.cfg.eval_every):
                    self._evaluate()
                if is_due(step, self.cfg.checkpoint_every):
                    self._save(last=step == self.cfg.steps)
            self._settle()
            self._end_save()
            if self.saved_step != self.position.step:
                self._save(last=True)
        finally:
            self.parts.feed.close()
        return self.position.step >= self.cfg.steps

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        share = learning_rate_share(step, warmup=self.cfg.warmup_steps, steps=self.cfg.steps)
        return self.strategy.optimizer.highest * share

    def _step(self, step: int) -> None:
        # What the job's dataset draws depends on the step alone: a resumed run draws the same.
        seed = step_seed(self.cfg.seed, step, 0)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        batches = self.parts.feed.step()
        rate = self.rate(step)
        self.strategy.optimizer.prepare(rate)
        self.updates += 1
        for numbers in self.strategy.submit(step, batches, rate, self.updates):
            self._take(numbers)
        samples = self.position.samples + self.parts.plan.global_batch
        self.position = replace(self.position, step=step, samples=samples)

    def _take(self, numbers: Numbers) -> None:
        step = numbers.step
        mean = numbers.loss_sum / numbers.count if numbers.count else math.nan
        if math.isfinite(mean) and numbers.count > 0 and math.isfinite(numbers.norm):
            self.skipped_in_a_row = 0
        else:
            self._take_bad(numbers)
        self.pace.count(numbers.count if math.isfinite(numbers.count) else 0.0)
        last = step == self.cfg.steps or bool(self.parts.stop)
        if step == self.first_step or last or is_due(step, self.cfg.log_every):
            self._report(step, mean, numbers.norm)

    def _take_bad(self, numbers: Numbers) -> None:
        what, loss = self._describe(numbers)
        self.updates -= 1
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.cfg.on_nan == "stop":
            why = f"{what}; stopped before it reached the weights"
            self._refuse(numbers.step, loss, why, CAN_SKIP)
        if self.skipped_in_a_row >= PATIENCE:
            why = (
                f"{what}; that makes {PATIENCE} steps in a row that were skipped; lower the learning rate, "
                "or look at the data that comes here"
            )
            self._refuse(numbers.step, loss, why)
        self.progress.record("train", numbers.step, loss=loss, skipped_steps=self.skipped)
        self.progress.say(f"{what}: skipped, the weights stay as they were")

    def _describe(self, numbers: Numbers) -> tuple[str, float | None]:
        """What is wrong with a bad step, and its loss where that is what is."""
        step = numbers.step
        bad = [(n, loss) for n, loss in enumerate(numbers.own) if not math.isfinite(loss)]
        if bad and len(numbers.own) > 1:
            where = ", ".join(f"{loss} on replica {n}" for n, loss in bad)
            return f"the loss of step {step} is {where}", bad[0][1]
        if not math.isfinite(numbers.loss_sum):
            return f"the loss of step {step} is {numbers.loss_sum}", numbers.loss_sum
        if numbers.count < 0:
            return f"what the job's loss counted in step {step} is {numbers.count:g}", None
        if numbers.count == 0:
            return f"the job's loss counted nothing in step {step}", None
        return f"the gradients of step {step} are not finite, although the loss is", None

    def _refuse(self, step: int, loss: float | None, why: str, advice: str = "") -> NoReturn:
        self._end_save()
        self.progress.record("train", step, loss=loss)
        last = (
            f"the last checkpoint is that of step {self.saved_step}"
            if self.saved_step
            else "nothing was saved since"
        )
        raise NonFiniteError(f"{why}, and {last}{advice}")

    def _settle(self) -> None:
        """See all steps to their end."""
        for numbers in self.strategy.settle():
            self._take(numbers)

    def _tell(self, phase: str) -> None:
        self.progress.record(phase, self.position.step)
        self.strategy.tell(phase, self.position.step)

    def _report(self, step: int, loss: float, norm: float) -> None:
        self.pace.report(
            step,
            loss=loss,
            norm=norm,
            learning_rate=self.rate(step),
            waited=self.parts.feed.waited,
            memory_bytes=peak_memory(),
            mfu=lambda _: "unknown",  # the trainer counts the arithmetic of torch's models only
            more={"skipped_steps": self.skipped} if self.cfg.on_nan == "skip" else {},
        )
        self.strategy.tell("train", step)

    def _evaluate(self) -> None:
        if self.parts.held_out is None:
            return
        self._settle()
        began = time.perf_counter()
        step = self.position.step
        self._tell("eval")
        found = self.strategy.evaluate(self.parts.held_out)
        values = {name: total / count if count else math.nan for name, (total, count) in found.items()}
        self.progress.record("eval", step, **{f"eval_{name}": value for name, value in values.items()})
        self.progress.say(
            f"evaluation after step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in values.items())
        )
        self._tell("train")
        self.pace.paused += time.perf_counter() - began

    def _save(self, *, last: bool) -> None:
        """Write a checkpoint: the `last` to its end, others in the background if that is wanted."""
        if self.parts.checkpoints is None:
            return
        self._settle()
        began = time.perf_counter()
        self._tell("save")
        self._end_save()
        background = self.cfg.async_checkpoints == "yes" and not last
        variables = self.strategy.variables()
        self.saving = self.parts.checkpoints.save(
            variables, self.updates, self.position, background=background
        )
        if not background:
            self._end_save(last=last)
        self._tell("train")
        self.pace.paused += time.perf_counter() - began

    def _end_save(self, *, last: bool = False) -> None:
        """Wait for the checkpoint that is being written, if one is, and say how it went.

        Raises CheckpointError when it is the `last` and could not be written; of others it is said.
        """
        save, self.saving = self.saving, None
        if save is None:
            return
        try:
            save.result()
        except CheckpointError as error:
            if last:
                raise
            self.progress.say(f"no checkpoint at step {save.step}: {error}")
        else:
            self.saved_step = save.step
            seconds = time.perf_counter() - save.began
            self.progress.say(f"saved {save.path} in {seconds:.2f} s; training waited {save.held_up:.2f} s")
