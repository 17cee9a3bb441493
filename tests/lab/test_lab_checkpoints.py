"""Training on hosts that share nothing but a network: the power fails, and a host does not come back."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from training import job
from waiting import wait_until

import trainer

from .host import LabHost
from .lab import Lab

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


class Trainings:
    """Trains on hosts, one rank on each, over SSH. Their checkpoints are in `run/checkpoints` at home."""

    def __init__(self) -> None:
        self.clients: list[subprocess.Popen[str]] = []

    def start(self, hosts: list[LabHost], port: int, *options: str) -> list[subprocess.Popen[str]]:
        """Start a run, each time at another port. The clients that print what its ranks print."""
        started = []
        for number, host in enumerate(hosts):
            if not (host.home / "trainer").exists():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(Path(trainer.__file__).parent, host.home / "trainer", ignore=ignore)
                shutil.copy(job("faults"), host.home / "faults.py")
            words = [
                *(
                    "env",
                    "OMP_NUM_THREADS=1",
                    "PYTHONPATH=/root",
                    "ENCAMP_HOME=/root",
                    "ENCAMP_RUN_DIR=/root/run",
                ),
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts))),
                *("--node-rank", str(number), "--nproc-per-node", "1", "--max-restarts", "0"),
                *("--master-addr", hosts[0].address, "--master-port", str(port)),
                *(
                    "-m",
                    "trainer",
                    "--task",
                    "faults.py",
                    "--global-batch",
                    "4",
                    "--micro-batch",
                    "2",
                    *options,
                ),
            ]
            # Without a word on the way a host that lost its power would be waited for.
            client = host.ssh_command("-o", "ServerAliveInterval=5")
            started.append(
                subprocess.Popen(
                    [*client, shlex.join(words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        self.clients += started
        return started

    def run(self, hosts: list[LabHost], port: int, *options: str) -> str:
        """Train to a good end. Returns what rank 0 said, the only one that speaks on a terminal."""
        clients = self.start(hosts, port, *options)
        said = [client.communicate(timeout=120)[0] for client in clients]
        assert [client.returncode for client in clients] == [0] * len(hosts), said
        return said[0]

    def end(self) -> None:
        for client in self.clients:
            client.kill()
            client.communicate()


@pytest.fixture
def trainings() -> Iterator[Trainings]:
    result = Trainings()
    yield result
    result.end()


def complete(host: LabHost) -> list[int]:
    """The steps of the complete checkpoints on a host."""
    markers = (host.home / "run" / "checkpoints").glob("step-*/complete.json")
    return sorted(int(marker.parent.name.removeprefix("step-")) for marker in markers)


def test_the_power_fails_and_one_host_is_replaced(lab: Lab, trainings: Trainings) -> None:
    a, b = lab.up(2)
    trainings.start([a, b], 29500, "--steps", "1000000", "--checkpoint-every", "20", "--log-every", "1000")
    wait_until(lambda: complete(a) and complete(b), 120, "both hosts have a checkpoint")
    b.power_cut()
    a.reboot()
    newest = complete(a)[-1]
    b.replace()
    assert complete(b) == []

    end = newest + 30
    said = trainings.run([a, b], 29501, "--steps", str(end), "--checkpoint-every", "1000000")
    assert f"step-{newest} is missing on h2: fetching it from h1" in said
    assert f"resumed from /root/run/checkpoints/step-{newest}: going on with step {newest + 1}\n" in said
    assert complete(b) == [newest, end]
    markers = [host.home / "run" / "checkpoints" / f"step-{end}" / "complete.json" for host in (a, b)]
    assert json.loads(markers[0].read_text()) == json.loads(markers[1].read_text())

    a.power_cut()  # now it is the other that goes on, and alone
    said = trainings.run([b], 29502, "--steps", str(end + 1))
    assert f"going on with step {end + 1}\n" in said
