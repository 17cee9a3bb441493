"""Training under encamp, with a viewer attached, against bare torchrun: the same script, in short turns."""

from __future__ import annotations

import math
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from agent_client import AgentHost, Connection

from agent import wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("train_and_time.py")
RANKS = 2
TURN = 1.0
"""Seconds that a turn takes, about: what the agent does once a second falls into each."""
FEWEST, MOST = 16, 50
"""Pairs of turns: as many as show on which side of the floor the median is."""
FLOOR = 0.99
DEADLINE = 120


class Trainee:
    """The script, which trains when it is told to. It is started with `path` as its argument."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(DEADLINE)
        self.connection: socket.socket | None = None

    def meet(self) -> None:
        """Wait until it is there."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(DEADLINE)

    def train(self, steps: int) -> float:
        """A turn. Returns the seconds that it took."""
        assert self.connection is not None
        self.connection.sendall(f"{steps}\n".encode())
        return float(self.connection.recv(64))

    def close(self) -> None:
        """Let it end."""
        self.listener.close()
        if self.connection is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()


def test_steps_per_second_against_bare_torchrun(agent_host: AgentHost, tmp_path: Path) -> None:
    ratios: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        with closing(Trainee(tmp_path / "ours")) as ours, bare(tmp_path / "bare") as theirs:
            viewer = agent_host.connect()
            launch(viewer, ours.path)
            end = pool.submit(viewer.expect, wire.Run, lambda run: run.state in wire.END_STATES, 500)
            ours.meet()
            theirs.meet()
            agent = [viewer.hello.pid, viewer.relay.pid, agent_host.supervisor("bench")]
            steps, seconds = 20, 0.0
            while not decided(ratios):
                if len(ratios) % 2:  # neither is always the one that comes after the other
                    seconds = ours.train(steps)
                with stopped(agent):
                    alone = theirs.train(steps)
                if not len(ratios) % 2:
                    seconds = ours.train(steps)
                ratios.append(alone / seconds)
                steps = max(20, round(steps * TURN / alone))
        assert end.result().state == "finished"
    low, median, high = statistics.quantiles(ratios)
    print(
        f"\nsteps/s, encamp / bare torchrun: median {median:.3f} of {len(ratios)} pairs, "
        f"half of them from {low:.3f} to {high:.3f}"
    )
    assert median >= FLOOR


def decided(ratios: list[float]) -> bool:
    """Whether more ratios lie on one side of the floor than chance explains, or there are enough."""
    surplus = abs(sum(1 if ratio >= FLOOR else -1 for ratio in ratios))
    return len(ratios) >= MOST or (len(ratios) >= FEWEST and surplus >= 2.5 * math.sqrt(len(ratios)))


def launch(viewer: Connection, path: Path) -> None:
    """Start the script as a run."""
    spec = wire.LaunchSpec(
        "bench", "bench", "bench", "ddp", "script", str(SCRIPT), (str(path),), "", RANKS, sys.executable
    )
    viewer.request("launch", timeout=60, spec=wire.to_json(spec), actor="bench")


@contextmanager
def bare(path: Path) -> Iterator[Trainee]:
    """Run the script as one would by hand."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
        *(str(SCRIPT), str(path)),
    ]
    with (
        subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as torchrun,
        closing(Trainee(path)) as trainee,
    ):
        yield trainee
    assert torchrun.returncode == 0


@contextmanager
def stopped(pids: list[int | None]) -> Iterator[None]:
    """Let the agent do nothing: it costs what runs without encamp nothing either."""
    for pid in filter(None, pids):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in filter(None, pids):
            os.kill(pid, signal.SIGCONT)
