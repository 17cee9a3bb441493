"""Acting on one rank of a real run: the drill, and signals by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.camp import SCRIPTS, Camp, Terminal
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.torch]


@pytest.fixture(scope="module")
def run(camp: Camp) -> Iterator[str]:
    """A run of two ranks that trains for longer than the tests take; the last of them ends it."""
    run = camp.launch(SCRIPTS / "steps.py", "100000", grace=1)
    yield run
    camp.run("stop", run, "--grace", "0")


def process_state(pid: int) -> str:
    """The letter of /proc/PID/stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pid_of(camp: Camp, run: str, rank: int) -> int:
    return int(camp.status(run)["ranks"][rank]["pid"])


def test_the_drill_names_the_rank_that_it_stops(camp: Camp, run: str) -> None:
    told = camp.run("drill", run, "--json").json
    assert (told["rank"], told["verdict"], told["culprits"]) == (1, "stopped", [1])
    assert told["named"], told
    assert told["went_on"], told
    assert told["resumed"], told
    assert 0 < told["alarm_seconds"] <= told["verdict_seconds"] < told["step_seconds"]
    assert told["verdict_seconds"] < 20
    assert camp.status(run)["state"] == "running"
    late = camp.run("drill", run, "--rank", "0", "--seconds", "1", code=1)
    assert b"no alarm within 1 s" in late.out
    assert b"the run goes on" in late.out
    assert "has no rank 7" in camp.run("drill", run, "--rank", "7", code=2).err


def test_an_interrupted_drill_lets_the_rank_go_on(camp: Camp, run: str) -> None:
    pid = pid_of(camp, run, 1)
    with camp.start("drill", run, "--seconds", "300") as drill:
        wait_until(lambda: process_state(pid) == "T", 40, "the rank is stopped")
        drill.send_signal(signal.SIGINT)
        out, _ = drill.communicate(timeout=30)
    assert drill.returncode == 130
    assert b"SIGCONT to rank 1" in out
    assert process_state(pid) != "T"


def test_a_signal_by_hand_is_confirmed(camp: Camp, run: str, terminal_of: Callable[..., Terminal]) -> None:
    pid = pid_of(camp, run, 1)
    refused = camp.run("signal", run, "--rank", "1", "--signal", "stop", code=2)
    assert "add --yes" in refused.err
    told = camp.run("signal", run, "--rank", "1", "--signal", "stop", "--yes", "--json").json
    assert (told["pid"], told["signal"], told["host"]) == (pid, "SIGSTOP", "box")
    wait_until(lambda: process_state(pid) == "T")
    camp.run("signal", run, "--rank", "1", "--signal", "CONT")
    wait_until(lambda: process_state(pid) != "T")
    for answer, code in (("0", 1), ("1", 0)):
        shell = terminal_of(camp, "signal", run, "--rank", "1", "--signal", "KILL")
        shell.wait("Type the rank's number")
        shell.type(f"{answer}\n")
        assert shell.end()[0] == code
        assert Path(f"/proc/{pid}").exists() or code == 0
    assert camp.run("wait", run, "--json", code=1).json["state"] == "failed"


@pytest.fixture
def terminal_of() -> Iterator[Callable[..., Terminal]]:
    """Start commands of a user on terminals."""
    started: list[Terminal] = []

    def start(camp: Camp, *words: str) -> Terminal:
        started.append(Terminal(camp, *words))
        return started[-1]

    yield start
    for each in started:
        each.close()
