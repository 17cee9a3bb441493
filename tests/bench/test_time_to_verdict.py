"""How soon a rank that got stuck is named, and how soon a crash is explained, in scenarios of the bank.

ENCAMP_BENCH_SCENARIOS says which are played: names out of the bank, or `all` that stall or crash. Beside each
stands what the machine had left meanwhile: how late a thread woke up that had slept, and how long its work
took against the processor time that it needed. The limits are for a machine that does nothing else; they grow
with how long that work took in the median.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# As the bank itself does.
sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.stalls.bank import HEADER, NotPossible, Outcome, house
from e2e.stalls.scenarios import (
    CRASHES,
    MEDIAN_SECONDS,
    SCENARIOS,
    STALL_SECONDS,
    STALLS,
    Scenario,
)

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(3600)]

HANDFUL = "ddp-sleep ddp-sigstop ddp-locks data-slow-worker fsdp-sleep ddp-raise ddp-sigkill ddp-exit-3"
CRASH_SECONDS = 2.0
ASLEEP = 0.05
WORK = 20_000
"""Numbers that are added up: about a millisecond's work."""


def test_seconds_to_the_verdict() -> None:
    stalls: list[Outcome] = []
    crashes: list[Outcome] = []
    slowdown: list[float] = []
    print(f"\n{HEADER:62} woke up late, work took")
    with house() as home:
        for scenario in chosen(os.environ.get("ENCAMP_BENCH_SCENARIOS", HANDFUL)):
            with watched() as machine:
                try:
                    outcome = home.play(scenario)
                except NotPossible as reason:
                    print(f"{scenario.name:22} not possible here: {reason}")
                    continue
            slowdown += machine.slowdown
            (crashes if scenario in CRASHES else stalls).append(outcome)
            print(f"{outcome.line():62} {machine}", flush=True)
    named = [outcome.seconds for outcome in stalls if outcome.seconds is not None and outcome.scenario.timed]
    shown = [outcome.seconds for outcome in crashes if outcome.seconds is not None]
    for what, seconds in (("stall to culprit", named), ("crash to first failure", shown)):
        if seconds:
            median, worst = statistics.median(seconds), max(seconds)
            print(f"{what}: median {median:.1f} s of {len(seconds)}, worst {worst:.1f} s")
    wrong = [outcome.line() for outcome in (*stalls, *crashes) if not outcome.ok]
    assert not wrong, "\n".join(wrong)
    slow = max(1.0, statistics.median(slowdown))
    if named:
        assert statistics.median(named) < MEDIAN_SECONDS * slow
        assert max(named) < STALL_SECONDS * slow
    if shown:
        assert statistics.median(shown) < CRASH_SECONDS * slow


def chosen(words: str) -> list[Scenario]:
    """Those that are meant."""
    if words == "all":
        return [*STALLS, *CRASHES]
    return [SCENARIOS[name] for name in words.split()]


@dataclass
class Machine:
    """What else it does, as a thread that wakes up twenty times a second sees it."""

    late: list[float] = field(default_factory=list)
    """Seconds."""
    slowdown: list[float] = field(default_factory=list)
    """Wall over processor time of a piece of work."""

    def __str__(self) -> str:
        late, slowdown = (statistics.quantiles(each, n=20)[-1] for each in (self.late, self.slowdown))
        return f"{1000 * late:.0f} ms, {slowdown:.1f} times (95 % of them less)"


@contextmanager
def watched() -> Iterator[Machine]:
    """Watch the machine meanwhile."""
    machine, over = Machine(), threading.Event()
    watch = threading.Thread(target=wake_up, args=(machine, over))
    watch.start()
    try:
        yield machine
    finally:
        over.set()
        watch.join()


def wake_up(machine: Machine, over: threading.Event) -> None:
    """Until it is over."""
    while not over.is_set():
        start = time.perf_counter()
        time.sleep(ASLEEP)
        awake, cpu = time.perf_counter(), time.thread_time()
        sum(range(WORK))
        machine.late.append(awake - start - ASLEEP)
        machine.slowdown.append((time.perf_counter() - awake) / (time.thread_time() - cpu))
