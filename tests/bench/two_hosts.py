"""Two hosts on which runs start, and a user who knows them.

Everything is as a user has it: `encamp` is a new process of compiled modules, `ssh` makes new connections.
The hosts share this machine's clock.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from e2e.camp import Camp
from lab.lab import Lab
from waiting import wait_until

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


def seconds(values: list[float]) -> str:
    """For people."""
    return f"{spread(values)} s"


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
