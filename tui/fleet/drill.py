"""The drill: one rank of a healthy run is stopped, and it is seen how fast encamp names it; then it goes on.

The rank is resumed whatever happens here. Should this process be killed or the connection be lost, its host
does so by itself, a little later.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent import wire

from . import diagnosis, runs, signals
from .diagnosis import Report
from .errors import EncampError, HostError, RequestRefused, UsageError
from .run_watch import POLL_SECONDS, NoSuchRun
from .session import Session
from .store import RunView, Store

MAX_SECONDS = 300.0
"""A rank is stopped no longer: NCCL's own watchdog ends a job after ten minutes."""

SPARE_SECONDS = 15.0
"""How long after our own time is over the host lets the rank go on, when we do not."""

RHYTHM_SECONDS = 20.0
"""How long it is waited for a run to have taken a few steps, so that it has a rhythm."""

UNKNOWN_RHYTHM_SECONDS = 30.0
"""What is allowed to a run that has no rhythm yet."""

AGAIN_SECONDS = 1.0
"""Between two looks at a run that is stalled, and whose culprit is not known."""

RESUME_SECONDS = 30.0
"""How long it is tried to let the rank go on, before that is left to its host."""

SETTLE_SECONDS = 30.0
"""How long a run may take, besides its own rhythm, to take a step again."""

Say = Callable[[float | None, str], None]
"""Told of what happens: seconds since the rank was stopped, None before, and a sentence."""


@dataclass
class Outcome:
    """What came of it. Seconds count from the moment in which the rank was stopped; None is never."""

    run: str
    attempt: int
    rank: int
    host: str
    allowed_seconds: float
    """How long the run's rhythm lets a rank go without progress; 0 while it has none."""
    seconds: float
    """How long the alarm was waited for at most."""
    alarm_seconds: float | None = None
    """The run was called stalled."""
    verdict_seconds: float | None = None
    """The verdict below was there."""
    verdict: str = ""
    culprits: tuple[int, ...] = ()
    confidence: float = 0.0
    sentence: str = ""
    resumed: bool = False
    """SIGCONT was sent from here. Otherwise the host does it by itself."""
    step_seconds: float | None = None
    """All ranks had taken another step, or where none are counted, the run was not stalled any more."""
    state: str = ""
    """The run's at the end."""

    @property
    def named(self) -> bool:
        """Whether the right rank was named in time, and no other."""
        return self.verdict_seconds is not None and self.culprits == (self.rank,)

    @property
    def went_on(self) -> bool:
        """Whether the run went on as before."""
        return self.step_seconds is not None

    @property
    def good(self) -> bool:
        """Whether all went as it should."""
        return self.named and self.went_on


def document(outcome: Outcome) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        **dataclasses.asdict(outcome),
        "culprits": list(outcome.culprits),
        "named": outcome.named,
        "went_on": outcome.went_on,
    }


async def drill(
    store: Store,
    sessions: Sequence[Session],
    run: str,
    actor: str,
    *,
    rank: int | None = None,
    seconds: float | None = None,
    say: Say,
) -> Outcome:
    """Stop a rank, the last one by default, wait for at most `seconds` until it is named, and resume it.

    Raises UsageError for a run that does not run as it should, RequestRefused, HostError.
    """
    each = _Drill(store, sessions, run, actor, say)
    return await each.run(rank, seconds)


class _Drill:
    def __init__(self, store: Store, sessions: Sequence[Session], run: str, actor: str, say: Say) -> None:
        self._store = store
        self._sessions = sessions
        self._run = run
        self._actor = actor
        self._say = say
        self._began = 0.0

    async def run(self, rank: int | None, seconds: float | None) -> Outcome:
        view = self._view()
        self._refuse(view)
        number = view.info.world_size - 1 if rank is None else rank
        session = signals.session_of(view, number, self._sessions)
        host = session.name
        self._say(None, f"looking whether {view.id} is well")
        allowed = await self._rhythm(view)
        limit = min(MAX_SECONDS, 3 * (allowed or UNKNOWN_RHYTHM_SECONDS) + 15) if seconds is None else seconds
        outcome = Outcome(view.id, view.attempt, number, host, allowed, limit)
        words = f"it may go {allowed:.1f} s without progress" if allowed else "it has no rhythm yet"
        self._say(None, f"stopping rank {number} on {host} for {limit:.0f} s at most; {words}")
        self._began = time.monotonic()
        try:
            sent = await signals.send(
                view, number, "SIGSTOP", self._actor, self._sessions, undo_after_seconds=limit + SPARE_SECONDS
            )
            self._began = time.monotonic()
            self._say(0.0, f"SIGSTOP to rank {number}, process {sent.pid}")
            await self._wait_for_name(outcome)
        finally:
            outcome.resumed = await self._resume(session, outcome)
        await self._wait_for_step(outcome)
        return outcome

    def _refuse(self, view: RunView) -> None:
        """Raise UsageError unless the run is one that the drill says something about."""
        state, reason = view.standing()
        if state != "running":
            more = f": {reason}" if reason else ""
            raise UsageError(f"{view.id} is {state}{more}", "The drill is for a run that trains.")
        if view.info.world_size < 1:
            raise UsageError(f"{view.id} has no rank.", "Wait until its ranks have started.")

    async def _rhythm(self, view: RunView) -> float:
        """How long the run lets a rank go without progress; 0 when it has no rhythm and gets none soon.

        Raises UsageError when something is wrong already.
        """
        deadline = time.monotonic() + RHYTHM_SECONDS
        while True:
            found = await diagnosis.examine(view, self._sessions)
            if found.diagnosis.alarming:
                raise UsageError(
                    f"{view.id} is not well: {found.diagnosis.sentence}.", f"See: encamp diagnose {view.id}"
                )
            if found.evidence.allowed_seconds or time.monotonic() > deadline:
                return found.evidence.allowed_seconds
            await asyncio.sleep(AGAIN_SECONDS)

    async def _wait_for_name(self, outcome: Outcome) -> None:
        """Wait for the alarm and for the right name, as long as there is time."""
        seen = False
        while self._now() < outcome.seconds:
            view = self._view()
            if view.attempt != outcome.attempt or view.state in wire.END_STATES:
                self._say(self._now(), f"the run is {view.state}: {view.reason}")
                return
            rank = view.ranks.get(outcome.rank)
            if not seen and rank is not None and rank.sample.process_state in ("T", "t"):
                seen = True
                self._say(self._now(), f"rank {outcome.rank} is shown as stopped (T)")
            if view.state != "stalled":
                await asyncio.sleep(POLL_SECONDS)
                continue
            if outcome.alarm_seconds is None:
                outcome.alarm_seconds = self._now()
                self._say(outcome.alarm_seconds, f"alarm, the run is stalled: {view.reason}")
            await self._judge(view, outcome)
            if outcome.named:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _judge(self, view: RunView, outcome: Outcome) -> None:
        """Ask all hosts for the verdict."""
        try:
            report: Report = await asyncio.wait_for(
                diagnosis.examine(view, self._sessions), max(0.1, outcome.seconds - self._now())
            )
        except (EncampError, asyncio.TimeoutError):
            return  # asked again, as long as there is time
        found = report.diagnosis
        if not found.alarming or (found.verdict, found.culprits) == (outcome.verdict, outcome.culprits):
            return
        outcome.verdict, outcome.culprits, outcome.sentence = found.verdict, found.culprits, found.sentence
        outcome.confidence, outcome.verdict_seconds = found.confidence, self._now()
        who = ", ".join(map(str, found.culprits)) or "nobody"
        self._say(self._now(), f"verdict {found.verdict}, culprit {who}: {found.sentence}")

    async def _resume(self, session: Session, outcome: Outcome) -> bool:
        """Let the rank go on; whether that was possible from here."""
        params = {
            "run": outcome.run,
            "attempt": outcome.attempt,
            "rank": outcome.rank,
            "signal": "SIGCONT",
            "actor": self._actor,
        }
        problem = f"{session.name} does not answer"
        try:
            await asyncio.wait_for(runs.request(session, "signal", params), RESUME_SECONDS)
        except RequestRefused as error:
            if error.code == "no-rank":
                self._say(self._now(), error.message)
                return False
            problem = error.message
        except HostError as error:
            problem = error.message
        except asyncio.TimeoutError:
            pass
        else:
            self._say(self._now(), f"SIGCONT to rank {outcome.rank}")
            return True
        by = outcome.seconds + SPARE_SECONDS
        self._say(
            self._now(), f"no SIGCONT from here, {problem}: the host sends it by itself after {by:.0f} s"
        )
        return False

    async def _wait_for_step(self, outcome: Outcome) -> None:
        """Wait until the run goes on."""
        steps = {rank: view.sample.step for rank, view in self._view().ranks.items()}
        deadline = self._now() + SETTLE_SECONDS + 2 * outcome.allowed_seconds
        if not outcome.resumed:
            deadline = max(deadline, outcome.seconds + SPARE_SECONDS + SETTLE_SECONDS)
        while self._now() < deadline:
            view = self._view()
            outcome.state = view.state
            if view.attempt != outcome.attempt or outcome.state in ("failed", "stopped"):
                break
            further = all(
                rank.sample.step is None or rank.sample.step > (steps.get(number) or 0)
                for number, rank in view.ranks.items()
            )
            if outcome.state == "finished" or (outcome.state == "running" and further):
                outcome.step_seconds = self._now()
                what = "has finished" if outcome.state == "finished" else "takes steps again"
                self._say(self._now(), f"the run {what}")
                return
            await asyncio.sleep(POLL_SECONDS)
        self._say(self._now(), f"the run did not go on: it is {outcome.state}")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _view(self) -> RunView:
        view = self._store.find_run(self._run)
        if view is None:
            raise NoSuchRun(f"There is no run {self._run} any more.", "See: encamp status")
        return view
