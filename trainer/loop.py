"""The training loop: steps, and what happens between them. It is the same for every job and every strategy.

The host reads no number of a step before it has to (see `readback`). What the ranks have to agree on, such as
whether somebody asked to stop, they read from the same sums, and so decide it at the same step.
"""

from __future__ import annotations

import math
import random
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import compiling
from .batches import BatchPlan, step_seed
from .checkpoint import Checkpoints
from .config import Config
from .data import Feed, HeldOut
from .errors import CAN_SKIP, CheckpointError, JobError, NonFiniteError
from .flops import Utilisation
from .folder import Position
from .nonfinite import Guard, Outcome, describe, hopeless
from .optim import Schedule
from .pace import Pace, is_due
from .progress import Progress
from .readback import Numbers, Readback
from .saving import Save
from .stop import StopRequest
from .strategies.base import Strategy
from .world import World


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop works with. `held_out` is None without evaluation, `checkpoints` when none are kept."""

    cfg: Config
    plan: BatchPlan
    world: World
    strategy: Strategy
    feed: Feed
    held_out: HeldOut | None
    utilisation: Utilisation
    checkpoints: Checkpoints | None
    progress: Progress
    stop: StopRequest


class Loop:
    """Trains from `start` on. `position` is where training stands."""

    def __init__(self, parts: Parts, start: Position) -> None:
        self.parts = parts
        self.cfg, self.world, self.strategy = parts.cfg, parts.world, parts.strategy
        self.progress = parts.progress
        self.position = start
        self.first_step = start.step + 1
        self.saved_step: int | None = None
        self.saving: Save | None = None
        """The checkpoint that is being written."""
        self.told_to_wait = False
        self.stopping = False
        self.schedule = Schedule(self.strategy.optimizer, self.cfg)
        device = self.world.device
        # On a CPU the numbers are there at once. On a GPU the host looks a step late, if the optimizer can be
        # kept from using a spoiled gradient in the meantime.
        self.readback = Readback(1 if device.type == "cuda" and self.strategy.can_skip else 0)
        self.asked = torch.zeros((), device=device)
        self.guard = Guard(self.cfg, self.strategy, device)
        self.pace = Pace(self.cfg, parts.plan, parts.progress)

    def run(self) -> bool:
        """Train to the last step or until asked to stop. Returns whether all steps are done.

        Raises NonFiniteError before the weights have taken up a bad gradient, CheckpointError when the
        checkpoint at the end cannot be written, and StoppedAtOnce.
        """
        self.strategy.model.train()
        # What is to be compiled is compiled when it is first called; the first step's record ends that phase.
        self.progress.record("compile" if self.cfg.compile == "yes" else "train", self.position.step)
        if self.cfg.compile == "yes":
            self.progress.say(f"compiling: step {self.first_step} comes when that is done, maybe in minutes")
        self.pace.begin(self.parts.feed.waited)
        try:
            for step in range(self.first_step, self.cfg.steps + 1):
                # Only the first is compiled.
                with self.parts.stop.at_once(step == self.first_step and self.cfg.compile == "yes"):
                    self._step(step)
                if self.saving is not None and self.saving.is_over:
                    self._end_save()
                if self.stopping:
                    break
                if is_due(step, self.cfg.eval_every):
                    self._evaluate()
                if is_due(step, self.cfg.checkpoint_every):
                    self._save(last=step == self.cfg.steps)
            self._settle()
            self._end_save(training=False)
            if self.saved_step != self.position.step:
                self._save(last=True)
        finally:
            # When the job fails too: what is on its way to the disk gets there.
            if self.saving is not None:
                self.saving.wait()
        return self.position.step >= self.cfg.steps

    def _step(self, step: int) -> None:
        # Random numbers depend on the step alone: a resumed run draws what an uninterrupted one would have.
        seed_everything(step_seed(self.cfg.seed, step, self.strategy.layout.draw), self.world.device)
        self.schedule.set(step)
        asked = self.asked.fill_(float(bool(self.parts.stop)))
        self.guard.begin()
        totals = self.strategy.accumulate(self.parts.feed.step(), asked)
        norm = self.strategy.finish_gradients(totals[1])
        numbers = torch.cat([totals, norm.view(1), *self.guard.numbers()])
        outcomes = [self._take(due) for due in self.readback.push(step, numbers)]
        if self.readback.lag:
            self.strategy.apply(self.guard.refused(totals, norm))
        elif self.guard.settle(outcomes[0]):
            self.strategy.apply(None)
        else:
            self.strategy.discard()
        self.position = replace(
            self.position, step=step, samples=self.position.samples + self.parts.plan.global_batch
        )

    def _take(self, due: Numbers) -> Outcome:
        """Look at the numbers of a step: the same on every rank, but for `own_loss`."""
        step, numbers = due
        loss_sum, count, asked, own_loss, norm = numbers[:5]
        outcome = self.guard.judge(numbers)
        if outcome is Outcome.BAD:
            self._take_bad(step, count, own_loss)
        elif outcome is Outcome.OVERFLOW:
            self._take_overflow(step, numbers[5])
        self.pace.count(count if math.isfinite(count) else 0.0)
        if asked and not self.stopping:
            self.stopping = True
            who = self.parts.stop.signal or "another rank"
            self.progress.say(f"asked to stop ({who}): leaving with a checkpoint")
        if step in (self.first_step, self.cfg.steps) or is_due(step, self.cfg.log_every) or self.stopping:
            mean = loss_sum / count if count else math.nan
            self._report(step, mean, norm, self.guard.report(numbers))
        if step == self.first_step and self.cfg.compile == "yes" and compiling.idle():
            self.progress.say("--compile yes had nothing to compile: the job's forward goes around its model")
        return outcome

    def _take_bad(self, step: int, count: float, own_loss: float) -> None:
        what, loss = describe(step, count, own_loss, self.world.size)
        if not self.guard.skips:
            self._refuse(step, loss, f"{what}; stopped before it reached the weights", CAN_SKIP)
        if self.guard.ends:
            self._refuse(step, loss, f"{what}; {self.guard.ends}")
        self.progress.record("train", step, loss=loss, skipped_steps=self.guard.skipped)
        self.progress.say(f"{what}: skipped, the weights stay as they were")

    def _take_overflow(self, step: int, scale: float) -> None:
        if hopeless(scale):
            what = f"the gradients of step {step} are not finite in fp16, however small the loss is scaled"
            self._refuse(step, None, f"{what}; use bf16 or fp32, or a lower learning rate")
        self.progress.say(
            f"step {step}: gradients too large for fp16 at a loss scale of {scale:g}; skipped, and the scale "
            "is lowered"
        )

    def _settle(self) -> None:
        """See all steps to their end."""
        for due in self.readback.flush():
            self._take(due)

    def _report(self, step: int, loss: float, norm: float, more: dict[str, Any]) -> None:
        self.pace.report(
            step,
            loss=loss,
            norm=norm,
            learning_rate=self.schedule.rate(step),
            waited=self.parts.feed.waited,
            memory_bytes=peak_memory(self.world.device),
            mfu=self.parts.utilisation.share,
            more=more,
        )

    def _refuse(self, step: int, loss: float | None, why: str, advice: str = "") -> NoReturn:
        self._end_save(training=False)
        self.progress.record("train", step, loss=loss)
        last = (
            f"the last checkpoint is that of step {self.saved_step}"
            if self.saved_step
            else "nothing was saved since"
        )
        raise NonFiniteError(f"{why}, and {last}{advice}")

    def _evaluate(self) -> None:
        if self.parts.held_out is None:
            return
        self._settle()
        began = time.perf_counter()
        step = self.position.step
        self.progress.record("eval", step)
        sums: dict[str, torch.Tensor] = {}
        self.strategy.model.eval()
        with torch.no_grad():
            for batch in self.parts.held_out:
                for name, pair in self.strategy.evaluate(batch).items():
                    new = torch.stack(
                        [
                            torch.as_tensor(x, dtype=torch.float64, device=self.world.device).reshape(())
                            for x in pair
                        ]
                    )
                    sums[name] = sums[name] + new if name in sums else new
        self.strategy.model.train()
        names = self._agreed(sums)
        shared = torch.stack([sums[name] for name in names])
        dist.all_reduce(shared)
        values = {
            name: total / count if count else math.nan
            for name, (total, count) in zip(names, shared.tolist(), strict=True)
        }
        self.progress.record("eval", step, **{f"eval_{name}": value for name, value in values.items()})
        self.progress.say(
            f"evaluation after step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in values.items())
        )
        self.progress.record("train", step)
        self.pace.paused += time.perf_counter() - began

    def _agreed(self, sums: Iterable[str]) -> list[str]:
        """The names of what was evaluated, in rank 0's order. Raises JobError where a rank has others."""
        everybody: list[list[str]] = [[]] * self.world.size
        dist.all_gather_object(everybody, list(sums))
        for rank, names in enumerate(everybody):
            odd = sorted(set(names) ^ set(everybody[0]))
            if odd:
                has, lacks = (rank, 0) if odd[0] in names else (0, rank)
                raise JobError(
                    f"job {self.cfg.task}: evaluate(output, batch) returned {odd[0]!r} on rank {has} and not "
                    f"on rank {lacks}: return the same names always, with a count of 0 where there is nothing"
                )
        return everybody[0]

    def _save(self, *, last: bool) -> None:
        """Write a checkpoint: the `last` to its end, others in the background if that is wanted."""
        if self.parts.checkpoints is None:
            return
        self._settle()
        began = time.perf_counter()
        step = self.position.step
        self.progress.record("save", step)
        self._end_save()
        background = self.cfg.async_checkpoints == "yes" and not last
        self.saving = self.parts.checkpoints.save(self.strategy, self.position, background=background)
        if not background:
            self._end_save(last=last)
        self.progress.record("train", step)
        self.pace.paused += time.perf_counter() - began

    def _end_save(self, *, training: bool = True, last: bool = False) -> None:
        """Wait for the checkpoint that is being written, if one is, and say how it went.

        Raises CheckpointError when it is the `last` and could not be written; of others it is said, and
        whether `training` goes on.
        """
        save = self.saving
        if save is None:
            return
        if not save.is_over:
            self.progress.record("save", self.position.step)
            if not (training and self.told_to_wait):
                self.progress.say(
                    f"the checkpoint of step {save.step} is still being written: waiting for it"
                )
            self.told_to_wait = True
        self.saving = None
        try:
            seconds = save.result()
        except CheckpointError as error:
            if last:
                raise
            goes_on = ", training goes on" if training else ""
            self.progress.say(f"no checkpoint at step {save.step}{goes_on}: {error}")
        else:
            self.saved_step = save.step
            self.progress.say(f"saved {save.path} in {seconds:.2f} s; training waited {save.held_up:.2f} s")


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed Python's and torch's generators, those of `device` included."""
    random.seed(seed)
    # Not torch.manual_seed: it asks every kind of accelerator, for a fifth of a millisecond.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def peak_memory(device: torch.device) -> int:
    """The most bytes in use so far: of the device's memory, or on a CPU of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
