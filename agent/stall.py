"""Notices that the ranks of an attempt make no progress for longer than its own rhythm allows.

A sign of progress is a step, a new phase, or a record of the program's own; from the pauses between them
comes what is normal in this run. A program that shows nothing of that, having no optimizer of torch's, is
asked from time to time how far it is in its collectives. What is found when they stay away is `diagnosis`;
this knows only when to look, and what was found last.
"""

from __future__ import annotations

import collections
import contextlib
import time
from typing import Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from . import wire
from .diagnosis import Diagnosis
from .signals.look import Known

MIN_SECONDS = 5.0
"""No rank is late earlier, however fast its steps are."""

PATIENCE = 3.0
"""So many times the longest of the recent pauses is normal."""

PAUSES = 64
"""So many pauses of a rank count as recent."""

MIN_PAUSES, MIN_STEPS = 3, 5
"""Before so many pauses a rhythm is only a first idea, and before so many steps there is none."""

EARLY_SECONDS = 6.0
"""No rank is late earlier by a first idea of the rhythm."""

HALF_TICK_SECONDS = 0.5
"""Samples come about twice that apart."""

MIN_ASK_SECONDS, ASK_SECONDS = 1.0, 10.0
"""Between two questions to a rank that shows no steps for its collectives: an answer may have a megabyte."""

ASK_SHARE = 0.00012
"""Of a core: as much as the questions may take here. A rank takes 16 times as much to answer them."""

MIN_HEARD, HEARD_SECONDS = 3, 10.0
"""As `MIN_PAUSES` and `MIN_SECONDS`, of what is known by such questions."""

AHEAD_SECONDS = 0.8
"""A look takes longer than that: it begins so much before a rank is late, and its end tells."""

AGAIN_SECONDS = 2.0
"""Between two looks at ranks that are late."""

LONG_AGAIN_SECONDS = 10.0
"""Between two looks when nothing new has come of `MANY_LOOKS`."""

MANY_LOOKS = 12

GUESS, SURE = 0.5, 0.9
"""A verdict that is less sure counts when the next look comes to the same."""

ENDED_SECONDS = 3.0
"""How long some ranks may be over while others go on: they never end at the same moment."""

MIN_KEPT_SECONDS = 1.0
"""A pause that is shorter changes nothing about what is allowed."""

RESUMED_SECONDS = 600.0
"""A step that another daemon may have seen is not believed to be older: clocks are set."""

START_SECONDS = 30.0
"""How long a rank may take to its first sign of progress before somebody looks at it."""

NOT_FINITE = ("nan", "inf", "-inf")


class Pulse:
    """One rank's signs of progress. Times are of the host's monotonic clock, in seconds."""

    def __init__(self, now: float, usual: float = 0.0) -> None:
        self.at = now
        """Of the last sign."""
        self._resumed = usual > 0
        self.phase_at = now
        self.sample: Optional[wire.RankSample] = None
        self.loss = ""
        self.over_at: Optional[float] = None
        self.learning = True
        """Whether the pauses are those of a run that is well."""
        self.blur = 0.0
        """Seconds by which a pause may be too long that is known by asking."""
        self._heard = 0
        self._pauses: Deque[float] = collections.deque([usual] * MIN_HEARD * self._resumed, maxlen=PAUSES)
        self._signs: Tuple[object, ...] = ()

    def observe(self, sample: wire.RankSample, told: Tuple[object, str], heard: int, now: float) -> None:
        """Take in a sample, with what it `told` and how often its collectives were `heard` to move."""
        before = self.sample
        reported, self.loss = told
        if before is None or sample.phase != before.phase:
            self.phase_at = now
        if before is None and self._resumed and sample.step_time is not None:
            age = time.time() - sample.step_time
            self.at = now - (age if 0.0 < age < RESUMED_SECONDS else 0.0)
        if sample.state in ("exited", "lost") and self.over_at is None:
            self.over_at = now
        if before is not None and before.step is None and sample.step is not None:
            self._pauses.clear()  # what was learned by asking is of no use any more
        signs = (sample.step, sample.phase, sample.state, reported, 0 if sample.step else heard)
        if signs != self._signs:
            at = max(self.at, now - _since_step(before, sample))
            if self.learning and before is not None and self._goes_on(before, sample, heard):
                blur = self.blur / 2 if sample.step is None else 0.0
                self._pauses.append(max(0.0, _longest_pause(before, sample, at - self.at) - blur))
            if before is not None or not self._resumed:
                self.at = at
            self._signs = signs
        self.sample, self._heard = sample, heard

    def _goes_on(self, before: wire.RankSample, sample: wire.RankSample, heard: int) -> bool:
        """Whether this is neither its first sign, nor one of another kind."""
        if before.step:
            return sample.step != before.step
        return sample.step is None and heard > self._heard > 0

    @property
    def allowed(self) -> float:
        """Seconds that it may go without a sign; 0 while it has no rhythm."""
        sample = self.sample
        if sample is None or not self._pauses:
            return 0.0
        if sample.step is None:
            enough = len(self._pauses) >= MIN_HEARD
            return max(HEARD_SECONDS, PATIENCE * max(self._pauses)) if enough else 0.0
        early = len(self._pauses) < MIN_PAUSES
        if early and ((sample.step or 0) < MIN_STEPS or not sample.step_seconds):
            return 0.0
        least = EARLY_SECONDS if early else MIN_SECONDS
        return max(least, PATIENCE * max(self._pauses), 4 * (sample.step_seconds or 0.0))

    @property
    def usual(self) -> float:
        """The longest of the recent pauses; 0 before there are enough of them to go by."""
        return max(self._pauses) if len(self._pauses) >= MIN_HEARD else 0.0


def _since_step(before: Optional[wire.RankSample], sample: wire.RankSample) -> float:
    """Seconds since the step that is this sample's sign; 0 where another one is, or a clock was set."""
    if before is None or sample.step == before.step or sample.step_time is None:
        return 0.0
    age = time.time() - sample.step_time
    return age if 0.0 < age < MIN_SECONDS else 0.0


def _longest_pause(before: wire.RankSample, sample: wire.RankSample, seconds: float) -> float:
    """The longest that one of the steps can have taken, where the others took what they usually do."""
    steps = (sample.step or 0) - (before.step or 0)
    if steps <= 1:
        return seconds
    return max(seconds / steps, seconds - (steps - 1) * (sample.step_seconds or 0.0))


class StallWatch:
    """All ranks of one attempt on this host.

    `fixed` seconds take the place of its rhythm, 0 for none. `usual` is the longest pause that another watch
    has seen in it, 0 where there was none.
    """

    def __init__(self, fixed: float = 0.0, usual: float = 0.0) -> None:
        self._fixed = fixed
        self._usual = usual
        self._pulses: Dict[int, Pulse] = {}
        self._looked = 0.0
        self._looks = 0
        self._looking = False
        self._last: Optional[Diagnosis] = None
        self._unsure = False
        """Something was found that is to be seen again at once."""
        self._late = False
        """At the last look a rank had been silent for as long as is allowed."""
        self._held: Dict[int, object] = {}
        """Ranks whose GIL was held, and the sign of progress that they had made last by then."""
        self._asked = 0.0
        self._asking = False
        self._ask_pause = MIN_ASK_SECONDS
        self._counts: Optional[Tuple[int, ...]] = None
        self._heard = 0
        self.alarm: Optional[Diagnosis] = None
        """What is wrong now, once it is sure."""

    def observe(
        self, samples: Iterable[wire.RankSample], told: Mapping[int, Tuple[object, str]], now: float
    ) -> None:
        """Take in how the ranks do; `told` has of each the identity of its newest record, and its loss."""
        for sample in samples:
            pulse = self._pulses.setdefault(sample.rank, Pulse(now, self._usual))
            pulse.learning, pulse.blur = self.alarm is None, self._ask_pause
            pulse.observe(sample, told.get(sample.rank, (None, "")), self._heard, now)

    @property
    def allowed(self) -> float:
        """Seconds that a rank may go without progress; 0 while that is not known."""
        return self._fixed or max((pulse.allowed for pulse in self._pulses.values()), default=0.0)

    def to_keep(self) -> float:
        """The longest pause, where it is worth to be told to another watch; 0 at most times."""
        usual = max((pulse.usual for pulse in self._pulses.values()), default=0.0)
        usual = max(usual, MIN_KEPT_SECONDS) if usual else 0.0
        if self.alarm is not None or abs(usual - self._usual) <= self._usual / 4:
            return 0.0
        self._usual = usual
        return usual

    def mute(self, now: float) -> Optional[int]:
        """A rank that shows no steps and is to be asked now for its collectives; None at most times."""
        if self._asking or now - self._asked < self._ask_pause - HALF_TICK_SECONDS:
            return None
        running = [p.sample for p in self._pulses.values() if p.sample and p.sample.state == "running"]
        if not running or any(sample.step is not None for sample in running):
            return None
        self._asked, self._asking = now, True
        return min(sample.rank for sample in running)

    def hear(self, counts: Optional[Tuple[int, ...]], seconds: float) -> None:
        """Take in how far a rank is in its collectives: that it got further is a sign of all of them.

        `seconds` of processor time were needed to find that out.
        """
        self._asking = False
        self._ask_pause = min(ASK_SECONDS, max(MIN_ASK_SECONDS, seconds / ASK_SHARE))
        if counts and counts != self._counts:
            self._heard, self._counts = self._heard + 1, counts

    def due(self, now: float) -> Optional[float]:
        """In how many seconds it is time to look at the ranks, from 0 on; None while nothing calls for it."""
        at = now if self.alarm is not None else self._suspicious_at()
        if at > now:
            self._looks, self._last = 0, None
        if self._looking or at == float("inf"):
            return None
        pause = AGAIN_SECONDS if self._looks < MANY_LOOKS else LONG_AGAIN_SECONDS
        if self._unsure or (self.alarm is not None and self._late and self._all_moved()):
            pause = 0.0
        return max(0.0, at - AHEAD_SECONDS - now, self._looked + pause - now)

    def _suspicious_at(self) -> float:
        """When something is out of the ordinary, if nothing happens: late, over before others, no number."""
        running, allowed = self._running(), self.allowed or START_SECONDS
        times = [pulse.at + (0.0 if pulse.loss in NOT_FINITE else allowed) for pulse in running]
        over = [pulse.over_at for pulse in self._pulses.values() if pulse.over_at is not None]
        if running and over:
            times.append(min(over) + ENDED_SECONDS)
        return min(times, default=float("inf"))

    def _running(self) -> List[Pulse]:
        return [pulse for pulse in self._pulses.values() if pulse.sample and pulse.sample.state == "running"]

    def _all_moved(self) -> bool:
        """Whether every running rank has shown a sign of progress since the last look."""
        running = self._running()
        return bool(running) and all(pulse.at > self._looked for pulse in running)

    @contextlib.contextmanager
    def looking(self, now: float) -> Iterator[None]:
        """While somebody looks at the ranks, from `now` on, which may be in a moment."""
        self._looking, self._looked, self._looks = True, now, self._looks + 1
        limit = (self.allowed or START_SECONDS) - AHEAD_SECONDS
        self._late = any(now - pulse.at >= limit for pulse in self._running())
        try:
            yield
        finally:
            self._looking = False

    def known(self, now: float) -> List[Known]:
        """What is known of the ranks without asking them, by rank."""
        return [
            Known(
                pulse.sample,
                now - pulse.at,
                now - pulse.phase_at,
                pulse.loss,
                self._held.get(number) == pulse.at,
            )
            for number, pulse in sorted(self._pulses.items())
            if pulse.sample is not None
        ]

    def hold(self, ranks: Iterable[int]) -> None:
        """Remember that the GIL of these ranks is held."""
        for number in ranks:
            if number in self._pulses:
                self._held[number] = self._pulses[number].at

    def conclude(self, found: Diagnosis) -> Optional[Diagnosis]:
        """Take in a diagnosis. Returns it when it begins or changes an alarm, or ends one; else None."""
        before, self._last = self._last, found
        again, self._unsure = not self._unsure, False
        if not found.alarming:
            ended, self.alarm = self.alarm, None
            return found if ended is not None else None
        same = before is not None and _same(before, found)
        if self.alarm is not None and _same(self.alarm, found):
            self.alarm = found
            return None
        if same or (self.alarm is None and found.confidence >= SURE):
            self.alarm = found
            return found
        # A number takes another step to tell, and of a mere guess nobody is in a hurry to hear.
        self._unsure = again and found.verdict != "nan" and found.confidence > GUESS
        return None


def _same(one: Diagnosis, other: Diagnosis) -> bool:
    return (one.verdict, one.culprits) == (other.verdict, other.culprits)
