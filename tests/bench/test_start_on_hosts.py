"""A run on two hosts, from the command to its first step, against torchrun started by hand through ssh.

Everything is as a user has it: `encamp` is a new process of compiled modules, `ssh` makes new connections.
The hosts were used before: the agent is there, and Python's files are in the page cache. They share this
machine's clock.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.camp import Camp
from lab.lab import Lab
from waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(900)]

PAIRS = 5
START, RESTART = 1.2, 1.3
FIRST_PORT = 29500
SCRIPT = Path(__file__).with_name("first_step.py")


class TwoHosts:
    """Two hosts that have the script, and a user who knows them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.camp = Camp(folder)
        self.camp.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.camp.env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        self.hosts = lab.up(2)
        self._trials = 0
        for host in self.hosts:
            shutil.copy(SCRIPT, host.home)
            command = f"ssh -p {host.ssh_port} -i {host.key} -o IdentitiesOnly=yes root@{host.address}"
            self.camp.run("hosts", "add", command, "--name", host.name, "--accept-new-host-key")

    @property
    def names(self) -> str:
        """As `--on` takes them."""
        return ",".join(host.name for host in self.hosts)

    def folder(self) -> str:
        """Where the next ranks write when their first step was done, on either host."""
        self._trials += 1
        name = f"trial-{self._trials}"
        for host in self.hosts:
            (host.home / name).mkdir()
        return name

    def profile(self, folder: str, *more: str) -> str:
        """The script as a profile."""
        path = self.camp.folder / f"{folder}.toml"
        args = ", ".join(f'"{word}"' for word in (f"/root/{folder}", *more))
        path.write_text(
            f'[run]\nscript = "first_step.py"\nargs = [{args}]\nnproc_per_node = 1\n'
            f'python = "{sys.executable}"\n[env]\nOMP_NUM_THREADS = "1"\n'
        )
        return str(path)

    def by_hand(self) -> float:
        """Seconds from two ssh commands to the first step of both ranks."""
        folder = self.folder()
        port = FIRST_PORT + self._trials
        lead = self.hosts[0].address
        start = time.time()
        clients = []
        for number, host in enumerate(self.hosts):
            torchrun = (
                f"OMP_NUM_THREADS=1 {shlex.quote(sys.executable)} -m torch.distributed.run --nnodes 2"
                f" --node-rank {number} --nproc-per-node 1 --master-addr {lead} --master-port {port}"
                f" first_step.py /root/{folder}"
            )
            clients.append(
                subprocess.Popen(
                    [*host.ssh_command(), torchrun],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
        try:
            said = [client.communicate(timeout=90)[1].decode() for client in clients]
        finally:
            for client in clients:
                client.kill()
                client.communicate()
        assert [client.returncode for client in clients] == [0, 0], said
        return self.first_step(folder) - start

    def first_step(self, folder: str, after: float = 0.0) -> float:
        """When the slower rank had done its first step, by the clock, and not before `after`."""
        paths = [host.home / folder / f"rank{rank}" for rank, host in enumerate(self.hosts)]
        return wait_until(lambda: max(times) if min(times := written(paths)) > after else None, 60, folder)

    def launch(self) -> float:
        """Seconds from `encamp launch` to the first step of both ranks."""
        folder = self.folder()
        profile = self.profile(folder)
        start = time.time()
        self.camp.run("launch", profile, "--on", self.names)
        return self.first_step(folder) - start


def written(paths: list[Path]) -> list[float]:
    """The times in files; 0 for one that is not there."""
    return [float(path.read_text()) if path.exists() else 0.0 for path in paths]


@pytest.fixture
def two_hosts(lab: Lab, tmp_path: Path) -> TwoHosts:
    """Two hosts on which either way was gone once."""
    hosts = TwoHosts(lab, tmp_path)
    hosts.by_hand()
    hosts.launch()
    return hosts


def test_start_against_torchrun_by_hand(two_hosts: TwoHosts) -> None:
    ours, theirs = [], []
    for pair in range(PAIRS):
        if pair % 2:  # neither is always the first
            ours.append(two_hosts.launch())
            theirs.append(two_hosts.by_hand())
        else:
            theirs.append(two_hosts.by_hand())
            ours.append(two_hosts.launch())
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(f"\nto the first step: encamp {seconds(ours)}, by hand {seconds(theirs)}, ratio {spread(ratios)}")
    assert statistics.median(ratios) <= START


def test_restart_against_a_cold_start(two_hosts: TwoHosts) -> None:
    """The ranks end at once on SIGTERM; stopping them counts, from the command on."""
    cold, warm = [], []
    for _ in range(PAIRS):
        folder = two_hosts.folder()
        profile = two_hosts.profile(folder, "forever")
        start = time.time()
        run = two_hosts.camp.run("launch", profile, "--on", two_hosts.names, "--json").json["run"]
        cold.append(two_hosts.first_step(folder) - start)
        start = time.time()
        two_hosts.camp.run("restart", run)
        warm.append(two_hosts.first_step(folder, after=start) - start)
        two_hosts.camp.run("stop", run, "--grace", "0")
    ratios = [one / other for one, other in zip(warm, cold, strict=True)]
    print(f"\nto the first step: restart {seconds(warm)}, launch {seconds(cold)}, ratio {spread(ratios)}")
    assert statistics.median(ratios) <= RESTART


def seconds(values: list[float]) -> str:
    """For people."""
    return f"{spread(values)} s"


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
