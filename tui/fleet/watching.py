"""Watching over a run while nobody looks: tell of stalls and ends, restart, and know when to leave it.

The state is looked at in the store; at a stall or failure all hosts are asked for the verdict.
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent import wire
from agent.diagnosis import places

from . import diagnosis, group_watch, tracebacks
from .brake import Brake, Trouble
from .diagnosis import Report
from .errors import EncampError, HostError
from .run_watch import NoSuchRun, RunFailed
from .sanitize import printable
from .session import Session
from .store import RunView, Store

LOOK_SECONDS = 0.25

VERDICT_SECONDS = 30.0
"""How long the verdict on a stall or failure may take; then it is acted upon without one."""

STOPPED_SECONDS = 15.0
"""How long a run that was stopped may take to be restarted by whoever did so, before the watch ends."""

AWAY_SECONDS = 30.0
"""How long a host must be out of reach before that is told."""

AGAIN_SECONDS = 30.0
"""Before a restart that was refused is tried again."""

MAY_BE_WELL = "it shows no steps and no cause was found: it may do what it should, so look at it yourself"

QUIET_SECONDS = 5.0
"""A last step that is older is worth a word when the watch begins."""

TRIES = 3
"""So often a refused restart is tried; one for which a host has to come back is tried on and on."""


@dataclass(frozen=True)
class Happening:
    """Something that happened to the run, or was done with it.

    `event` is one of watching, stalled, resumed, failed, restarting, restarted, not-restarted, given-up,
    finished, stopped, unreachable, reachable.
    """

    event: str
    run: str
    attempt: int
    state: str
    sentence: str
    verdict: str | None = None
    culprits: tuple[int, ...] = ()
    host: str | None = None
    """Of the first culprit, as far as there is one."""
    step: int | None = None
    time: float = field(default_factory=time.time)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "event": self.event,
            "run": self.run,
            "attempt": self.attempt,
            "state": self.state,
            "verdict": self.verdict,
            "culprits": list(self.culprits),
            "sentence": self.sentence,
            "host": self.host,
            "step": self.step,
            "time": self.time,
        }


Restart = Callable[[int], Awaitable[int]]
"""Restarts the run on all of its hosts unless an attempt after the given one has begun.

Returns the number of the new attempt. Raises EncampError.
"""


class Watch:
    """Watches one run to its end. `tell` must not raise and not take long."""

    def __init__(
        self,
        store: Store,
        sessions: Callable[[], Sequence[Session]],
        run: str,
        *,
        restart: Restart | None,
        max_restarts: int,
        tell: Callable[[Happening], None],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._run = run
        self._restart = restart
        """None: a stalled or failed run is left as it is."""
        self._brake = Brake(max_restarts)
        self._tell_of = tell
        self._attempt = 0
        self._step: int | None = None
        """The furthest that this attempt has come."""
        self._last = ""
        """The state that was told of last."""

    async def run(self) -> Happening:
        """Watch, act and tell; returns the last thing that was told.

        Raises NoSuchRun, and HostError when no connection goes on without a person's help.
        """
        view = self._look()
        self._attempt, self._last = view.attempt, "running"
        self._tell("watching", view, _standing(view))
        while True:
            ended = await self._act(self._look())
            if ended is not None:
                return ended
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> RunView:
        view = self._store.find_run(self._run)
        if view is None:
            raise NoSuchRun(f"There is no run {self._run} any more.", "See: encamp status")
        if view.attempt > self._attempt > 0:
            self._attempt, self._step = view.attempt, None
            self._brake.somebody_else_acted()
            self._tell("restarted", view, f"somebody has restarted it: attempt {view.attempt}")
            self._last = "running"
        group_watch.check(self._sessions())
        if view.step is not None:
            self._step = max(view.step, self._step or 0)
        return view

    async def _act(self, view: RunView) -> Happening | None:
        """Do what the run's state asks for; returns the last happening when there is nothing to watch."""
        state, before = view.state, self._last
        if state in ("starting", "stopping"):
            return None
        if state == "unreachable":
            if before != state and await self._lasts(state, AWAY_SECONDS):
                self._last = state
                self._tell("unreachable", view, view.reason)
            return None
        if state == "running":
            if before in ("stalled", "unreachable"):
                self._tell("resumed" if before == "stalled" else "reachable", view, "it goes on")
            self._last = state
            return None
        if state == "finished":
            return self._tell("finished", view, view.reason or "all ranks have ended well")
        if state == "stopped":
            if await self._lasts(state, STOPPED_SECONDS):
                return self._tell("stopped", view, view.reason)
            return None
        if state == before:
            return None  # a stall that was told of, and nothing is to be done about it
        self._last = state
        return await self._trouble(view, state)

    async def _trouble(self, view: RunView, state: str) -> Happening | None:
        """A stall or failure: find out, tell, and restart if that is wanted and makes sense."""
        report = await self._examine(view)
        if self._gone(view):
            return None  # it went by while we looked
        happened = self._tell(state, view, view.reason, report)
        if self._restart is None:
            return happened if state == "failed" else None
        if state == "stalled" and _may_be_well(report):
            self._tell("not-restarted", view, MAY_BE_WELL, report)
            return None
        checkpoint = await self._checkpoint(view)
        if self._gone(view):
            return None
        refusal = self._brake.consider(Trouble(fingerprint(report), self._step, checkpoint))
        if refusal:
            return self._tell("given-up", view, f"not restarted any more: {refusal}. {_left(view)}", report)
        return await self._start_again(view, report)

    def _gone(self, view: RunView) -> bool:
        """Whether the trouble that `view` shows is over, or somebody has restarted the run meanwhile.

        Without this a person's restart would be undone by ours.
        """
        now = self._look()
        return now.attempt != view.attempt or now.state not in ("stalled", "failed")

    async def _start_again(self, view: RunView, report: Report | None) -> Happening | None:
        """Restart the run, again and again while that is refused for reasons that may go away."""
        assert self._restart is not None
        count = f"restart {self._brake.restarts + 1} of at most {self._brake.max_restarts}"
        self._tell("restarting", view, count, report)
        refused, told = 0, ""
        while True:
            try:
                attempt = await self._restart(view.attempt)
            except RunFailed as error:
                self._took(error.attempt)
                return None  # that attempt has failed, and is looked at like any other
            except EncampError as error:
                refused += not isinstance(error, HostError)
                if error.message != told:
                    told = error.message
                    self._tell("not-restarted", view, error.message, report)
                if refused >= TRIES:
                    now = self._look()
                    return self._tell("given-up", now, f"refused {TRIES} times. {_left(now)}", report)
            else:
                self._took(attempt)
                self._tell("restarted", self._look(), f"attempt {attempt} runs")
                return None
            if not await self._stays_down(AGAIN_SECONDS):
                return None  # somebody else has acted, or it goes on by itself

    def _took(self, attempt: int) -> None:
        """Our restart has made this attempt."""
        self._brake.restarted()
        self._attempt, self._step, self._last = attempt, None, "running"

    async def _stays_down(self, seconds: float) -> bool:
        """Whether the run does not go on for so long. What was refused may have stopped it before."""
        deadline = time.monotonic() + seconds
        attempt = self._attempt
        while time.monotonic() < deadline:
            view = self._look()
            if view.attempt != attempt or view.state in ("running", "finished"):
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _lasts(self, state: str, seconds: float) -> bool:
        """Whether the run stays in `state`, in the same attempt, for so long."""
        deadline = time.monotonic() + seconds
        attempt = self._attempt
        while time.monotonic() < deadline:
            view = self._look()
            if view.state != state or view.attempt != attempt:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _examine(self, view: RunView) -> Report | None:
        try:
            return await asyncio.wait_for(diagnosis.examine(view, self._sessions()), VERDICT_SECONDS)
        except (EncampError, TimeoutError, asyncio.TimeoutError):
            return None  # then it is said without a verdict

    async def _checkpoint(self, view: RunView) -> int | None:
        """The step of the newest complete checkpoint on any host that tells."""
        hosts = {host.name for host, _ in view.parts}
        newest: int | None = None
        for session in self._sessions():
            if session.name not in hosts or not session.live:
                continue
            try:
                told = (await session.request("checkpoints", {"run": view.id})).get("complete")
            except EncampError:
                continue
            for each in told if isinstance(told, list) else ():
                step = each.get("step") if isinstance(each, dict) else None
                if isinstance(step, int) and (newest is None or step > newest):
                    newest = step
        return newest

    def _tell(self, event: str, view: RunView, sentence: str, report: Report | None = None) -> Happening:
        found = report.diagnosis if report is not None else None
        culprits = found.culprits if found is not None else ()
        part = view.part_of(culprits[0]) if culprits else None
        if found is not None and event in ("stalled", "failed"):
            sentence = found.sentence if found.alarming else sentence or found.sentence
        happening = Happening(
            event,
            view.id,
            view.attempt,
            view.state,
            printable(sentence[: wire.MAX_TEXT]),
            None if found is None else found.verdict,
            culprits,
            part[0].name if part else None,
            self._step,
        )
        self._tell_of(happening)
        return happening


def _may_be_well(report: Report | None) -> bool:
    """Whether a stall may be none: of a program that never showed a step it is not known what is long."""
    return (
        report is not None
        and report.diagnosis.verdict == "unknown"
        and not report.evidence.allowed_seconds
        and all(rank.step is None for rank in report.evidence.ranks)
    )


def _standing(view: RunView) -> str:
    """How the run is when the watch begins; a stall that nobody has called one yet shows in its last step."""
    if view.state == "stalled":
        return f"it is stalled: {view.reason}"
    if view.state != "running" or view.step is None:
        return f"it is {view.state}"
    ages = [
        time.time() + host.clock_offset - rank.sample.step_time
        for host, node in view.parts
        for rank in node.ranks.values()
        if rank.sample.step_time is not None
    ]
    last = f", the last step was {min(ages):.0f} s ago" if ages and min(ages) >= QUIET_SECONDS else ""
    return f"it is running, at step {view.step}{last}"


def _left(view: RunView) -> str:
    """How a run is left that is given up, and what a person can do."""
    if view.live:
        return (
            f"It still stands there and holds its GPUs: `encamp stop {view.id}` frees them, "
            f"`encamp diagnose {view.id}` says what holds it up, `encamp restart {view.id}` tries again."
        )
    return (
        f"Its processes have ended, its GPUs are free: `encamp diagnose {view.id}` says what failed, "
        f"`encamp restart {view.id}` starts it again."
    )


def fingerprint(report: Report | None) -> str:
    """What happened and where in the user's code, the same whenever it happens again; empty when unknown."""
    if report is None or report.diagnosis.verdict in ("healthy", "unknown", "host-unreachable"):
        return ""
    found = report.diagnosis
    words = [found.verdict]
    rank = next((rank for rank in report.evidence.ranks if rank.rank in found.culprits), None)
    if rank is not None and rank.error_type:
        words.append(rank.error_type)
        frames = [
            match
            for line in tracebacks.lines(rank.traceback)
            if line.user_code and (match := tracebacks.FRAME.match(line.text))
        ]
        if frames:
            words.append(f"{posixpath.basename(frames[-1][1])}:{frames[-1][2]}")
    elif rank is not None:
        frame = places.user_frame(places.main_stack(rank))
        if frame is not None:
            words.append(f"{posixpath.basename(frame.file)}:{frame.line}")
    return " ".join(words)
