"""Several hosts of a lab and a user who has noted them down, for runs on several hosts at once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.camp import SCRIPTS, Camp, Done
from lab.host import LabHost
from lab.lab import Lab
from lab.tools import run
from waiting import wait_until

import tui

LIVE = ("starting", "running", "stalled", "stopping")


class Cluster:
    """Hosts of a lab, and a user who has noted them down; the script lies on each of them."""

    def __init__(self, lab: Lab, camp: Camp) -> None:
        self.lab = lab
        self.camp = camp
        self.hosts: dict[str, LabHost] = {}
        self._lost: set[str] = set()

    def close(self) -> None:
        """Leave nothing behind."""
        for name in list(self._lost):
            self.find(name)

    def add(self, name: str, **options: object) -> LabHost:
        """Rent one more."""
        host = self.hosts[name] = self.lab.add(name, **options)
        for script in ("reduce.py", "turns.py"):
            shutil.copy(SCRIPTS / script, host.home / script)
        self.note_down(self.camp, name)
        return host

    def note_down(self, camp: Camp, name: str) -> None:
        """Let a user have a host in the list."""
        host = self.hosts[name]
        command = f"ssh -p {host.ssh_port} -i {host.key} -o IdentitiesOnly=yes root@{host.address}"
        camp.run("hosts", "add", command, "--name", name, "--accept-new-host-key")

    def lose(self, name: str) -> None:
        """Have no way to a host any more, and know it at once: connecting takes no ten seconds."""
        run("ip", "route", "add", "unreachable", self.hosts[name].address)
        self._lost.add(name)

    def find(self, name: str) -> None:
        """Have a way again."""
        run("ip", "route", "delete", "unreachable", self.hosts[name].address)
        self._lost.discard(name)

    def power_cut(self, name: str) -> None:
        """Take the power from a host; whoever connects is told that it is not there."""
        self.hosts[name].power_cut()
        self.lose(name)

    def power_on(self, name: str) -> None:
        """Boot it again."""
        self.find(name)
        self.hosts[name].power_on()

    def profile(self, *args: str, ranks: int = 1, script: str = "reduce.py", more: str = "") -> str:
        """One that starts the script in the home folder of each host."""
        path = self.camp.folder / Path(script).with_suffix(".toml")
        path.write_text(
            f'[run]\nscript = "{script}"\nargs = {json.dumps(args)}\nnproc_per_node = {ranks}\n'
            f"python = {json.dumps(sys.executable)}\nstop_grace_seconds = 3\n"
            f'[env]\nOMP_NUM_THREADS = "1"\n{more}'
        )
        return str(path)

    def launch(self, *names: str, ranks: int = 1, profile: str = "") -> dict[str, Any]:
        """Launch a run that goes on until it is stopped, or one with another profile."""
        profile = profile or self.profile("forever", ranks=ranks)
        words = ("launch", profile, "--on", ",".join(names), "--json")
        launched: dict[str, Any] = self.camp.run(*words).json
        return launched

    def refused(self, *names: str, code: int = 1) -> Done:
        """A launch that fails, and leaves nothing that lives."""
        done = self.camp.run("launch", self.profile("forever"), "--on", ",".join(names), code=code)
        assert not self.living()
        return done

    def runs(self) -> list[dict[str, Any]]:
        """All runs on the hosts that answer."""
        found: list[dict[str, Any]] = self.camp.run("status", "--json", code=None).json["runs"]
        return found

    def living(self) -> list[dict[str, Any]]:
        """Those of them that have not ended."""
        return [run for run in self.runs() if run["state"] in LIVE]

    def folders(self, name: str) -> list[str]:
        """The runs of which a host has anything."""
        runs = self.hosts[name].home / ".encamp" / "runs"
        return [entry.name for entry in runs.iterdir()] if runs.is_dir() else []

    def ranks_on(self, name: str) -> int:
        """How many launchers and ranks live on a host, as it sees that itself: 0 when nothing runs there."""
        host = self.hosts[name]
        words = [Path(f"/proc/{pid}/cmdline") for pid in host.processes()] if host.running else []
        lines = []
        for path in words:
            with contextlib.suppress(OSError):  # it has just ended
                lines.append(path.read_bytes())
        return sum(b"reduce.py" in line or b"turns.py" in line for line in lines)

    def runs_nowhere(self) -> bool:
        """Whether no host with power has a launcher or a rank, and no run is said to live."""
        return not any(self.ranks_on(name) for name in self.hosts) and not self.living()

    @contextlib.contextmanager
    def frozen_at(self, stages: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """`encamp WORDS`, standing still since the moment in which it had said all `stages`.

        See `scripts/frozen.py`. Send it SIGCONT to let it go on. At the end of the context it is killed if it
        lives.
        """
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "frozen.py"), stages, *words],
            env={**self.camp.env, "PYTHONPATH": str(Path(tui.__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            wait_until_frozen(process)
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_until_frozen(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process was stopped by a signal, once more than before. It must not end."""

    def stopped() -> bool:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise AssertionError(f"it ended: {process.communicate()}")
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None

    wait_until(stopped, 60, "it stands still")


def said(camp: Camp, run: str, rank: int, text: str) -> None:
    """Wait until a rank has said something."""
    wait_until(lambda: text in camp.run("logs", run, "--rank", str(rank)).out.decode(), 90, text)
