"""When somebody has to look: the rhythm of the steps, their first pauses, and what is known without steps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from agent import stall, wire
from agent.diagnosis import Diagnosis

SLEEPS = Diagnosis("collective-missing", "rank 1 sleeps", (1,), 0.9)
PERHAPS = Diagnosis("unknown", "no progress", (1,), 0.3)
FINE = Diagnosis("healthy", "all ranks make progress")


PATIENT = stall.PATIENCE


class Training:
    """Two ranks that are seen once a second, by a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fixed: float = 0.0) -> None:
        self.now = 1000.0
        self.watch = stall.StallWatch(fixed)
        self.step = 0
        self.step_time = self.now
        monkeypatch.setattr("time.time", lambda: self.now)

    def seen(self, **more: Any) -> None:
        """One sample."""
        values: dict[str, Any] = {
            "step": self.step or None,
            "step_time": self.step_time,
            "step_seconds": 0.2 if self.step > 1 else None,
            "state": "running",
        }
        samples = [wire.RankSample(rank, rank, **(values | more)) for rank in range(2)]
        self.watch.observe(samples, {}, self.now)

    def train(self, seconds: int, every: float = 0.2, **more: Any) -> None:
        """Steps of `every` seconds for so long."""
        for _ in range(seconds):
            self.now += 1.0
            while self.step_time + every <= self.now + 1e-6:
                self.step, self.step_time = self.step + 1, self.step_time + every
            self.seen(**more)

    def waits(self, limit: float = 120.0) -> float:
        """Seconds without a sign until somebody has to look."""
        start = self.now
        while (wait := self.watch.due(self.now)) is None or wait >= 1.0:
            assert self.now - start < limit, "nobody looks"
            self.now += 1.0
            self.seen()
        self.now += wait
        return self.now - start


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(monkeypatch)


def test_fast_steps_allow_five_seconds(training: Training) -> None:
    training.train(20)
    assert training.watch.allowed == stall.MIN_SECONDS
    assert training.waits() == pytest.approx(stall.MIN_SECONDS - stall.AHEAD_SECONDS)


def test_a_look_at_the_ranks_of_a_daemon_that_was_away_teaches_nothing(training: Training) -> None:
    training.train(5)
    for _ in range(9):  # the steps go on, and nobody sees them
        training.now += 1.0
        training.step, training.step_time = training.step + 5, training.now
    training.seen()
    assert training.watch.allowed == stall.MIN_SECONDS


def test_one_long_step_counts(training: Training) -> None:
    training.train(5)
    training.now, training.step, training.step_time = (
        training.now + 7.0,
        training.step + 1,
        training.now + 7.0,
    )
    training.seen()
    assert training.watch.allowed == pytest.approx(21.0, abs=0.5)


def test_slow_steps_are_given_the_time_of_several(training: Training) -> None:
    training.train(60, every=4.0, step_seconds=4.0)
    assert training.watch.allowed == pytest.approx(16.0, abs=0.5)


def test_a_first_idea_after_two_seconds_and_none_before(training: Training) -> None:
    training.train(1)
    assert training.watch.allowed == 0.0
    training.train(1)
    assert training.watch.allowed == stall.EARLY_SECONDS
    assert training.waits() == pytest.approx(stall.EARLY_SECONDS - stall.AHEAD_SECONDS)


def test_without_any_sign_somebody_looks_after_half_a_minute(training: Training) -> None:
    training.seen()
    assert training.waits() == pytest.approx(stall.START_SECONDS - stall.AHEAD_SECONDS)


def test_what_the_profile_says_takes_the_place_of_the_rhythm(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, fixed=60.0)
    training.train(20)
    assert training.watch.allowed == 60.0 and training.waits() == pytest.approx(59.2)


@pytest.mark.parametrize(("took", "pause"), [(0.0001, 1), (0.00036, 3), (0.003, 10)])
def test_a_program_without_steps_is_asked_for_its_collectives_as_often_as_is_cheap(
    training: Training, took: float, pause: int
) -> None:
    watch, asked = training.watch, 0
    for second in range(60):
        training.now += 1.0
        training.seen(step=None)
        if watch.mute(training.now) is not None:
            asked += 1
            assert watch.mute(training.now + 60) is None, "the answer is to come"
            watch.hear((second, second), took)
        assert watch.due(training.now) is None or watch.due(training.now) > 1
    assert asked == pytest.approx(60 / pause, abs=1)
    assert watch.allowed == max(stall.HEARD_SECONDS, 1.5 * pause)
    assert training.waits() < 17.0
    training.train(3)
    assert watch.mute(training.now + 60) is None, "it shows steps"
    assert watch.allowed in (0.0, stall.EARLY_SECONDS), "and what was learned by asking is forgotten"


@pytest.mark.parametrize("answer", [None, (), (3, 3)])
def test_an_answer_that_stays_the_same_is_no_sign(training: Training, answer: tuple[int, ...] | None) -> None:
    watch = training.watch
    for _ in range(60):
        training.now += 1.0
        training.seen(step=None)
        if watch.mute(training.now) is not None:
            watch.hear(answer, 0.001)
    assert watch.due(training.now) == 0.0


def test_a_sure_verdict_is_an_alarm_at_once_and_a_guess_when_it_is_made_twice(training: Training) -> None:
    watch = training.watch
    assert watch.conclude(PERHAPS) is None and watch.alarm is None
    assert watch.conclude(PERHAPS) == PERHAPS == watch.alarm
    assert watch.conclude(SLEEPS) is None and watch.conclude(SLEEPS) == SLEEPS, "a change too is made twice"
    assert watch.conclude(SLEEPS) is None, "and said once"
    assert watch.conclude(FINE) == FINE and watch.alarm is None and watch.conclude(FINE) is None
    assert watch.conclude(SLEEPS) == SLEEPS


def test_looks_become_rare_when_nothing_comes_of_them(training: Training) -> None:
    training.train(20)
    times = []
    for _ in range(16):
        training.waits()
        with training.watch.looking(training.now):
            assert [one.sample.rank for one in training.watch.known(training.now)] == [0, 1]
            assert training.watch.due(training.now) is None, "somebody is looking"
        times.append(training.now)
        training.watch.conclude(FINE)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert set(pauses[:11]) == {stall.AGAIN_SECONDS} and pauses[-1] == stall.LONG_AGAIN_SECONDS


def looks_at_a_stall(training: Training) -> None:
    """Steps, then so many looks at a stall that they have become rare."""
    training.train(20)
    for _ in range(stall.MANY_LOOKS + 1):
        training.waits()
        with training.watch.looking(training.now):
            training.watch.conclude(SLEEPS)
    assert training.watch.alarm == SLEEPS


def test_ranks_that_all_go_on_are_looked_at_at_once(training: Training) -> None:
    watch = training.watch
    looks_at_a_stall(training)
    training.now += 2.0
    training.seen()
    assert (watch.due(training.now) or 0.0) > 5.0, "nothing has changed"
    training.step, training.step_time = training.step + 1, training.now
    training.train(1)
    assert watch.due(training.now) == 0.0
    with watch.looking(training.now):
        training.train(1)
        assert watch.conclude(FINE) == FINE
    training.train(1)
    assert watch.alarm is None and (watch.due(training.now) or 0.0) > 1.0


def test_an_alarm_about_steps_that_go_on_is_no_reason_to_look_all_the_time(training: Training) -> None:
    looks_at_a_stall(training)
    training.now += 2.0
    training.step, training.step_time = training.step + 1, training.now
    training.train(1)
    with training.watch.looking(training.now):
        training.watch.conclude(Diagnosis("nan", "the loss is no number", (1,), 0.95))
    training.train(2)
    assert training.watch.due(training.now) == stall.LONG_AGAIN_SECONDS - 2.0


def test_one_rank_that_goes_on_is_no_reason_to_look_at_once(training: Training) -> None:
    looks_at_a_stall(training)
    training.now += 2.0
    samples = [
        wire.RankSample(rank, rank, step=training.step + rank, step_time=training.now, state="running")
        for rank in range(2)
    ]
    training.watch.observe(samples, {}, training.now)
    assert (training.watch.due(training.now) or 0.0) > 5.0


def test_what_is_not_sure_is_looked_at_again_at_once_but_only_once(training: Training) -> None:
    watch = training.watch
    training.train(20)
    training.now += 6.0
    training.seen()

    def due_after(found: Diagnosis) -> float | None:
        with watch.looking(training.now):
            watch.conclude(found)
        return watch.due(training.now)

    assert due_after(PERHAPS) == stall.AGAIN_SECONDS, "a guess has time"
    assert due_after(Diagnosis("thread-deadlock", "rank 1 waits", (1,), 0.85)) == 0.0
    assert due_after(Diagnosis("slow-storage", "rank 1 waits", (1,), 0.8)) == stall.AGAIN_SECONDS
    assert due_after(FINE) == stall.AGAIN_SECONDS
    assert due_after(Diagnosis("nan", "no number", (0,), 0.85)) == stall.AGAIN_SECONDS


def test_a_rhythm_that_another_watch_has_learned_counts_from_the_first_moment(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(20, every=4.0, step_seconds=4.0)
    usual = training.watch.to_keep()
    assert 4.0 <= usual <= 5.0
    assert training.watch.to_keep() == 0.0, "it is told once"
    after = Training(monkeypatch)
    after.watch, after.now, after.step, after.step_time = (
        stall.StallWatch(0.0, usual),
        training.now + 9.0,
        training.step,
        training.step_time,
    )
    after.seen()
    assert after.watch.allowed == pytest.approx(PATIENT * usual)
    late = after.now - after.step_time
    assert after.waits() == pytest.approx(PATIENT * usual - late - stall.AHEAD_SECONDS)


def test_short_pauses_are_kept_once_and_not_at_an_alarm(training: Training) -> None:
    training.train(20)
    assert training.watch.to_keep() == stall.MIN_KEPT_SECONDS
    training.train(20, every=0.5)
    assert training.watch.to_keep() == 0.0
    training.train(60, every=4.0, step_seconds=4.0)
    training.watch.conclude(SLEEPS)
    assert training.watch.to_keep() == 0.0
