"""Signals to one rank: to that process alone, written down, and stops that end by themselves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from agent_client import AgentHost, Refused
from attempts import Lab, events
from waiting import wait_until

from agent import process
from agent.attempt import Attempt
from agent.errors import RunError
from agent.signal_requests import SignalTo, send


def state(attempt: Attempt, rank: int) -> str:
    """The letter of the rank's process."""
    found = process.stat(attempt.ranks()[rank][0])
    return found.state if found else ""


def ask(attempt: Attempt, rank: int, name: str, undo: float | None = None) -> int:
    return send(attempt, SignalTo(attempt.run, attempt.number, rank, name, "ann", undo))


def stopped(attempt: Attempt, rank: int) -> bool:
    return state(attempt, rank) == "T"


def test_one_rank_is_stopped_and_goes_on_again(lab: Lab) -> None:
    attempt = lab.running("forever")
    pid = ask(attempt, 1, "SIGSTOP")
    assert pid == attempt.ranks()[1][0]
    wait_until(lambda: stopped(attempt, 1))
    assert not stopped(attempt, 0)
    ask(attempt, 1, "SIGCONT")
    wait_until(lambda: not stopped(attempt, 1))
    text = (Path(attempt.dir) / "events.jsonl").read_text()
    assert [json.loads(line)["text"] for line in text.splitlines()] == [
        f"SIGSTOP to rank 1, process {pid}",
        f"SIGCONT to rank 1, process {pid}",
    ]


def test_a_stop_for_a_while_ends_without_daemon_and_viewer(lab: Lab) -> None:
    attempt = lab.running("forever")
    ask(attempt, 0, "SIGSTOP", 0.6)
    ask(attempt, 1, "SIGSTOP", 600)
    wait_until(lambda: stopped(attempt, 0) and stopped(attempt, 1))
    wait_until(lambda: not stopped(attempt, 0), 5, "rank 0 goes on")
    assert stopped(attempt, 1)
    wait_until(lambda: ("signal", "supervisor") in events(attempt))
    ask(attempt, 1, "SIGSTOP")
    assert not list(Path(attempt.dir).glob("rank*/undo.json")), "who stops it now decides when it goes on"


def test_the_next_supervisor_remembers_it(lab: Lab) -> None:
    attempt = lab.running("forever")
    ask(attempt, 1, "SIGSTOP", 0.5)
    wait_until(lambda: stopped(attempt, 1))
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGKILL)
    wait_until(lambda: attempt.condition().unwatched)
    with pytest.raises(RunError, match="its supervisor is gone"):
        ask(attempt, 0, "SIGSTOP", 5)
    lab.supervise(attempt, "--adopt")
    wait_until(lambda: not stopped(attempt, 1), 5, "rank 1 goes on")


def test_what_is_refused_reaches_nobody(lab: Lab) -> None:
    attempt = lab.running("0:forever", "1:wait")
    for name, undo, complaint in (
        ("SIGSEGV", None, "cannot be sent"),
        ("9", None, "cannot be sent"),
        ("SIGTERM", 5, "goes with SIGSTOP"),
        ("SIGSTOP", 1e9, "goes with SIGSTOP"),
    ):
        with pytest.raises(RunError, match=complaint):
            ask(attempt, 0, name, undo)
    with pytest.raises(RunError, match="not on this host") as refused:
        ask(attempt, 2, "SIGKILL")
    assert refused.value.hint == "it has 0 to 1"
    record = Path(attempt.dir, "rank0", "rank.json")
    was = json.loads(record.read_text())
    record.write_text(json.dumps({**was, "start_time": was["start_time"] + 1}))
    with pytest.raises(RunError, match="has ended"):  # the pid is another process's by now
        ask(Attempt(lab.home, attempt.run, 1), 0, "SIGKILL")
    (lab.folder / "go").touch()
    pid, started = attempt.ranks()[1]
    wait_until(lambda: not process.alive(pid, started))
    with pytest.raises(RunError, match="has ended"):
        ask(attempt, 1, "SIGKILL")
    assert state(attempt, 0) in ("S", "R")
    assert events(attempt) == []


def test_over_the_wire(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    with pytest.raises(Refused) as refused:
        viewer.request("signal", run="run-a", attempt=2, rank=0, signal="SIGKILL", actor="ann")
    assert refused.value.code == "no-run"
    told = viewer.request("signal", run="run-a", attempt=1, rank=1, signal="SIGKILL", actor="ann@laptop")
    failed = viewer.until_run("run-a", "failed")
    assert failed.exit_code
    event = viewer.until_event("signal")
    assert (event.actor, event.text) == ("ann@laptop", f"SIGKILL to rank 1, process {told['pid']}")
