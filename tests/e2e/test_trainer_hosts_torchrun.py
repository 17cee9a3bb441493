"""The trainer under real torchrun on hosts that share no folder: each has its own address and disk."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.torchruns import Torchrun
from training import job, losses

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

OPTIONS = (
    *("--task", job("faults"), "--steps", "12", "--global-batch", "4", "--micro-batch", "2"),
    *("--checkpoint-every", "4", "--log-every", "1"),
)


class Hosts:
    """Starts attempts. Hosts have letters; each has a disk, `folder/LETTER`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Torchrun] = []

    def run(self, hosts: str, *options: str, **environment: str) -> list[Torchrun]:
        """One rank on each of the hosts, to a good end."""
        nodes: list[Torchrun] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for number, host in enumerate(hosts):
            place = (
                *("--rdzv-backend", "static", "--nnodes", str(len(hosts)), "--node-rank", str(number)),
                *("--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", f"127.0.0.{number + 1}"),
            )
            disk = self.folder / host
            disk.mkdir(exist_ok=True)
            env = {"ENCAMP_RUN_DIR": str(disk), **environment}
            self.started.append(
                Torchrun(self.folder / f"attempt-{len(self.started)}", 1, *options, node=place, **env)
            )
            nodes.append(self.started[-1])
        return [node.finish() for node in nodes]

    def checkpoints(self, host: str) -> list[str]:
        return sorted(path.name for path in (self.folder / host / "checkpoints").iterdir())


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    result = Hosts(tmp_path)
    yield result
    for run in result.started:
        run.end()


def test_a_run_whose_host_was_replaced_goes_on_to_the_last_bit(hosts: Hosts) -> None:
    """Each host has all of it, so the loss of either is the loss of nothing."""
    first = hosts.run("ab", *OPTIONS, JOB_FAULT="stop", JOB_AT="5", JOB_RANK="1")
    for rank, host in enumerate("ab"):
        log = first[rank].log(rank)
        folder = hosts.folder / host / "checkpoints"
        line = f"checkpoints: {folder} is not shared by the 2 hosts: each keeps whole checkpoints of its own"
        assert log.count(line) == 1
        assert "stopped as asked after step 6" in log
        assert hosts.checkpoints(host) == ["step-4", "step-6"]

    shutil.rmtree(hosts.folder / "a")  # it was the first host, and now it is another machine
    rest = hosts.run("ab", *OPTIONS)
    for rank, host in enumerate("ab"):
        log = rest[rank].log(rank)
        assert "step-6 is missing on " in log
        assert f"resumed from {hosts.folder}/{host}/checkpoints/step-6: going on with step 7" in log
    assert hosts.checkpoints("a") == ["step-12", "step-6", "step-8"]

    whole = hosts.run("cd", *OPTIONS)
    expected = losses(whole[0].rank(0))
    assert losses(first[0].rank(0)) | losses(rest[0].rank(0)) == expected
    assert list(expected) == list(range(1, 13))
