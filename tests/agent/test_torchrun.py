"""The real torchrun, with gloo on the CPU: the whole way from a spec to the reason of the end."""

from __future__ import annotations

import dataclasses
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import SCRIPTS, Lab, ended, launch, log
from waiting import wait_until

from agent import control, files, process, runs
from agent.attempt import Attempt

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SECONDS = 90.0
"""Two ranks import torch and meet, on a machine that does other things as well."""


class Host(Lab):
    """Launches train.py."""

    def launch(self, *words: str, nproc: int = 2, grace: float = 20.0) -> Attempt:
        spec = dataclasses.replace(
            self.spec("real-1", *words, nproc=nproc, grace=grace),
            target=str(SCRIPTS / "train.py"), python=sys.executable,
        )  # fmt: skip
        launch(self.home, spec, "ann")
        attempt = runs.current(self.home, "real-1")
        self.attempts.append(attempt)
        return attempt


@pytest.fixture
def host(home: str, tmp_path: Path) -> Iterator[Host]:
    laboratory = Host(home, tmp_path)
    yield laboratory
    laboratory.close()


def test_a_script_trains_to_its_end_and_its_steps_are_counted(host: Host) -> None:
    attempt = host.launch("4")
    condition = ended(attempt, SECONDS)
    assert (condition.state, condition.reason, condition.exit_code) == ("finished", "", 0)
    for rank in range(2):
        assert log(attempt, f"rank{rank}") == "".join(f"rank {rank} step {step}\n" for step in range(4))
        area = Path(attempt.dir, f"rank{rank}", "steps").read_bytes()
        assert struct.unpack_from("<8sQ", area) == (b"ENCAMP1\0", 4)
    assert attempt.reaped() == []
    assert not list(Path(attempt.dir).glob("**/*.part"))


def test_the_rank_that_raised_is_named_and_torchrun_shows_its_traceback(host: Host) -> None:
    attempt = host.launch("1000000", "raise")
    condition = ended(attempt, SECONDS)
    assert (condition.state, condition.exit_code) == ("failed", 1)
    assert condition.reason.startswith("rank 1 exited with code 1: ValueError: loss is not finite")
    error = files.read_json(f"{attempt.dir}/rank1/error.json")
    assert error is not None
    assert "rank.py" not in str(error["traceback"])
    assert "ValueError: loss is not finite" in log(attempt, "launcher")
    assert log(attempt, "rank1").endswith("ValueError: loss is not finite\n")


def test_the_rank_that_was_killed_is_named_before_those_that_lost_it(host: Host) -> None:
    condition = ended(host.launch("1000000", "kill"), SECONDS)
    assert condition.state == "failed"
    assert condition.reason.startswith("rank 1 was killed by SIGKILL")


@pytest.mark.slow
def test_a_deaf_rank_is_ended_when_the_grace_is_over(host: Host) -> None:
    attempt = host.launch("1000000", "deaf", grace=0.5)
    wait_until(lambda: "deaf" in log(attempt, "rank1"), SECONDS)
    control.stop(host.home, "real-1", "ann")
    condition = ended(attempt, SECONDS)
    assert condition.state == "stopped"
    assert condition.reason.startswith("stopped by ann; ")
    assert attempt.ranks()[1][0] in attempt.reaped()


@pytest.mark.slow
def test_ranks_of_a_killed_torchrun_do_not_go_on(host: Host) -> None:
    attempt = host.launch("1000000", "well")
    wait_until(lambda: "step 1" in log(attempt, "rank1"), SECONDS)
    launcher = files.read_json(f"{attempt.dir}/launcher.json")
    assert launcher is not None
    os.kill(int(str(launcher["pid"])), signal.SIGKILL)
    condition = ended(attempt, SECONDS)
    assert condition.state == "failed"
    assert condition.reason.startswith("torchrun was killed by SIGKILL; 2 processes that it left behind")
    assert not any(process.alive(*identity) for identity in attempt.ranks().values())
