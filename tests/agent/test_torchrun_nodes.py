"""The real torchrun on two nodes: two homes on this machine, which reach each other over loopback."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_client import SCRIPTS, AgentHost, gone
from waiting import wait_until

from agent import files, ports, wire

pytestmark = [pytest.mark.slow, pytest.mark.torch]
pytest.importorskip("torch")

SECONDS = 120.0
"""Four ranks import torch and meet, on a machine that does other things as well."""


class Cluster:
    """Two hosts, each with a viewer, at 127.0.0.1 and 127.0.0.2."""

    def __init__(self, folder: Path) -> None:
        self.hosts = [AgentHost(str(folder / f"host{number}" / "home")) for number in range(2)]
        self.viewers = [host.connect() for host in self.hosts]

    def prepare(self, attempt: int, *words: str) -> None:
        """Prepare both."""
        nodes = tuple(
            wire.Node(f"host{number}", viewer.hello.host_id, f"127.0.0.{number + 1}", "lo")
            for number, viewer in enumerate(self.viewers)
        )
        port = ports.free_port()
        for number, (host, viewer) in enumerate(zip(self.hosts, self.viewers, strict=True)):
            spec = {**host.spec("run-a", *words), "target": str(SCRIPTS / "train.py")}
            place = wire.to_json(wire.Placement(nodes, number, "127.0.0.1", port, f"run-a-{attempt}-{port}"))
            viewer.request("prepare", SECONDS, spec=spec, attempt=attempt, placement=place, actor="ann")

    def start(self, attempt: int) -> None:
        """Start both and confirm."""
        for method in ("start", "confirm"):
            asked = [viewer.ask(method, run="run-a", attempt=attempt) for viewer in self.viewers]
            for viewer, number in zip(self.viewers, asked, strict=True):
                viewer.answer(number)

    def ended(self, attempt: int) -> list[wire.Run]:
        """How it ended on each host."""
        return [
            viewer.until(
                wire.Run, lambda run: run.attempt == attempt and run.state in wire.END_STATES, SECONDS
            )
            for viewer in self.viewers
        ]

    def log(self, number: int, attempt: int, stream: str) -> str:
        return (self.hosts[number].attempt_dir("run-a", attempt) / f"{stream}.log").read_text()

    def close(self) -> None:
        for host in self.hosts:
            host.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pair = Cluster(tmp_path)
    yield pair
    pair.close()


def test_two_nodes_train_together_and_again(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for attempt in (1, 2):
        began = time.monotonic()
        cluster.prepare(attempt, "4")
        prepared = time.monotonic()
        cluster.start(attempt)
        started = time.monotonic()
        runs = cluster.ended(attempt)
        assert [(run.state, run.reason, run.exit_code) for run in runs] == [("finished", "", 0)] * 2
        assert [(run.node_rank, run.world_size, run.nproc_per_node) for run in runs] == [(0, 4, 2), (1, 4, 2)]
        with capsys.disabled():
            took = (prepared - began, started - prepared, time.monotonic() - started)
            print(" prepare {:.2f} s, start {:.2f} s, to the end {:.1f} s".format(*took), end="")
        for rank in range(4):
            steps = "".join(f"rank {rank} step {step}\n" for step in range(4))
            assert cluster.log(rank // 2, attempt, f"rank{rank}") == steps


def rank_pid(host: AgentHost, rank: int) -> Any:
    return (files.read_json(str(host.attempt_dir("run-a") / f"rank{rank}" / "rank.json")) or {}).get("pid")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_both_nodes_and_is_named(cluster: Cluster) -> None:
    cluster.prepare(1, "1000000")
    cluster.start(1)
    pid = wait_until(lambda: rank_pid(cluster.hosts[1], 3), SECONDS)
    wait_until(lambda: "step 1" in cluster.log(1, 1, "rank3"), SECONDS)
    os.kill(pid, signal.SIGKILL)
    lead, other = cluster.ended(1)
    assert other.reason.startswith("rank 3 was killed by SIGKILL")
    assert lead.state == "failed"
    assert lead.reason.startswith(("rank 0", "rank 1"))
    assert all(gone(rank_pid(cluster.hosts[rank // 2], rank)) for rank in range(4))
