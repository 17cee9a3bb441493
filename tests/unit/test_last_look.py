"""What ranks show that are stopped or killed while they make no progress is written down before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import inquiry, last_look, wire
from agent.attempt import Attempt
from agent.diagnosis import Diagnosis
from agent.signals.look import Known
from agent.stall import StallWatch


class Watched:
    """A watcher of one attempt."""

    def __init__(self, attempt: Attempt, stalled: StallWatch) -> None:
        self._stalls = {(attempt.run, attempt.number): stalled}

    def stalls(self) -> dict[tuple[str, int], StallWatch]:
        return self._stalls


@pytest.fixture
def sleeper() -> Iterator[int]:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    found = Attempt(str(tmp_path), "run-1", 1)
    Path(found.dir, "rank0").mkdir(parents=True)
    return found


async def looked(attempt: Attempt, pid: int, silent: float, alarm: Diagnosis | None = None) -> bool:
    stalled = StallWatch()
    sample = wire.RankSample(0, 0, "running", pid=pid, step=7)
    stalled.observe([sample], {}, time.monotonic() - silent)
    stalled.alarm = alarm
    await last_look.take(Watched(attempt, stalled), (), attempt)  # type: ignore[arg-type]
    return Path(attempt.dir, last_look.FILE).exists()


async def test_a_silent_rank_is_looked_at(attempt: Attempt, sleeper: int) -> None:
    assert await looked(attempt, sleeper, silent=9.0)
    told = json.loads(Path(attempt.dir, last_look.FILE).read_text())
    assert told["diagnosis"]["verdict"] == "healthy", "nothing is known of its rhythm yet"
    [rank] = told["evidence"]["ranks"]
    assert (rank["rank"], rank["pid"], rank["process_state"]) == (0, sleeper, "S")


async def test_nobody_waits_for_a_rank_that_goes_on(attempt: Attempt, sleeper: int) -> None:
    assert not await looked(attempt, sleeper, silent=1.0)


async def test_an_alarm_has_been_written_down_already(attempt: Attempt, sleeper: int) -> None:
    alarm = Diagnosis("unknown", "no progress", (0,), 0.9)
    assert not await looked(attempt, sleeper, silent=9.0, alarm=alarm)


async def test_an_attempt_of_which_nothing_is_known(attempt: Attempt) -> None:
    other = Attempt(attempt.home, "run-1", 2)
    await last_look.take(Watched(attempt, StallWatch()), (), other)  # type: ignore[arg-type]
    assert not Path(other.dir, last_look.FILE).exists()


async def test_a_look_that_hangs_holds_no_stop_up(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(attempt: Attempt, known: list[Known], *more: object) -> None:
        time.sleep(1.0)
        raise OSError

    monkeypatch.setattr(inquiry, "evidence", hang)
    monkeypatch.setattr(last_look, "WAIT_SECONDS", 0.05)
    began = time.monotonic()
    assert not await looked(attempt, os.getpid(), silent=9.0)
    assert time.monotonic() - began < 0.8
