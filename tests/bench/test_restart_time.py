"""A restart, from the request to the first step of the next attempt, against a start of a run that is new.

On one host it is the request that a key sends; on two it is a command, from its first moment. The ranks end
at once on SIGTERM: how long one may take to save is up to it. After each restart nothing of the attempt
before may live: neither a process, whoever its parent is by then, nor its port.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from agent_client import AgentHost, Connection
from lab.host import LabHost
from lab.lab import Lab
from two_hosts import TwoHosts, spread
from waiting import wait_until

from agent import process, wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("first_step.py")
RANKS = 2
PAIRS = 3
LIMIT = 1.3
START_SECONDS = 90


def test_by_a_request_to_one_host(agent_host: AgentHost, tmp_path: Path) -> None:
    viewer = agent_host.connect()
    cold, warm, stops = [], [], []
    for pair in range(PAIRS + 1):
        run = f"run-{pair}"
        folder = tmp_path / run
        folder.mkdir()
        start = time.time()
        launch(viewer, run, folder)
        from_nothing = first_step(folder) - start
        old = processes_of(agent_host.attempt_dir(run))
        assert len(old) >= 1 + 2 * RANKS, "torchrun, the ranks and their workers"
        port = spec_of(agent_host.attempt_dir(run))["resolved"]["port"]
        start = time.time()
        viewer.request("restart", run=run, actor="bench", timeout=START_SECONDS)
        again = first_step(folder, after=start) - start
        assert not [pid for pid, started in old.items() if process.alive(pid, started)]
        assert not processes_of(agent_host.attempt_dir(run))
        assert is_free(port) or port == spec_of(agent_host.attempt_dir(run, 2))["resolved"]["port"]
        if pair:  # the first reads everything from the disk
            cold.append(from_nothing)
            warm.append(again)
            stops.append(ended(agent_host.attempt_dir(run)) - start)
        viewer.request("stop", run=run, actor="bench", timeout=START_SECONDS)
    ratios = [one / other for one, other in zip(warm, cold, strict=True)]
    print(
        f"\none host: first step after a restart / after a launch: {spread(ratios)} of {PAIRS}; "
        f"launch {spread(cold)} s, restart {spread(warm)} s, of which the stop took {spread(stops)} s"
    )
    assert statistics.median(ratios) <= LIMIT


@pytest.mark.sshd
def test_by_a_command_on_two_hosts(lab: Lab, tmp_path: Path) -> None:
    two_hosts = TwoHosts(lab, tmp_path)
    two_hosts.launch()  # from here on the hosts were used before
    lead = two_hosts.hosts[0]
    cold, warm = [], []
    for _ in range(PAIRS):
        folder = two_hosts.folder()
        profile = two_hosts.profile(folder, "forever", "workers")
        start = time.time()
        run = two_hosts.camp.run("launch", profile, "--on", two_hosts.names, "--json").json["run"]
        cold.append(two_hosts.first_step(folder) - start)
        assert all(len(processes_on(host, run, 1)) >= 3 for host in two_hosts.hosts), "torchrun, rank, worker"
        start = time.time()
        two_hosts.camp.run("restart", run)
        warm.append(two_hosts.first_step(folder, after=start) - start)
        assert not any(processes_on(host, run, 1) for host in two_hosts.hosts)
        old, new = (spec_of(attempt_on(lead, run, number))["placement"] for number in (1, 2))
        if old["rendezvous_port"] != new["rendezvous_port"]:
            assert not lead.reaches(lead.private_address, old["rendezvous_port"])
        two_hosts.camp.run("stop", run, "--grace", "0")
    ratios = [one / other for one, other in zip(warm, cold, strict=True)]
    print(
        f"\ntwo hosts: first step after a restart / after a launch: {spread(ratios)} of {PAIRS}; "
        f"launch {spread(cold)} s, restart {spread(warm)} s"
    )
    assert statistics.median(ratios) <= LIMIT


def attempt_on(host: LabHost, run: str, number: int) -> Path:
    """An attempt's folder on a host of the lab."""
    return host.home / ".encamp" / "runs" / run / "attempts" / str(number)


def processes_on(host: LabHost, run: str, number: int) -> list[int]:
    """What lives of an attempt on a host of the lab."""
    marks = {f"ENCAMP_RUN={run}".encode(), f"ENCAMP_ATTEMPT={number}".encode()}
    return [pid for pid in host.processes() if marks <= process.environ(pid)]


def launch(viewer: Connection, run: str, folder: Path) -> None:
    """Start the script as a run."""
    spec = wire.LaunchSpec(
        run=run,
        name=run,
        profile="bench",
        strategy="ddp",
        target_kind="script",
        target=str(SCRIPT),
        args=(str(folder), "forever", "workers"),
        cwd="",
        nproc_per_node=RANKS,
        python=sys.executable,
    )
    viewer.request("launch", timeout=START_SECONDS, spec=wire.to_json(spec), actor="bench")


def first_step(folder: Path, after: float = 0.0) -> float:
    """When the slower rank had done its first step, by the clock, and not before `after`."""
    paths = [folder / f"rank{rank}" for rank in range(RANKS)]

    def done() -> float | None:
        times = [float(path.read_text()) if path.exists() else 0.0 for path in paths]
        return max(times) if min(times) > after else None

    return wait_until(done, START_SECONDS, f"a step in {folder}") or 0.0


def processes_of(attempt_dir: Path) -> dict[int, int]:
    """pid -> start time of what lives of an attempt, but for its supervisor, which carries no marks."""
    return process.marked({"ENCAMP_ATTEMPT_DIR": str(attempt_dir)})


def spec_of(attempt_dir: Path) -> dict[str, Any]:
    """What an attempt was started with."""
    found: dict[str, Any] = json.loads((attempt_dir / "spec.json").read_text())
    return found


def ended(attempt_dir: Path) -> float:
    """When an attempt was over, by the clock."""
    return float(json.loads((attempt_dir / "exit.json").read_text())["time"])


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0
