"""Stalls across two hosts: what neither of them can know alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "scripts" / "ddp.py"


class Pair:
    """A run with one rank on each of two hosts."""

    def __init__(self, cluster: Cluster, *words: str) -> None:
        self.cluster = cluster
        for name in "ab":
            (cluster.add(name).home / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
        profile = cluster.profile(*words, script=SCRIPT.name)
        self.run = cluster.launch("a", "b", profile=profile)["run"]
        wait_until(lambda: self._steps() >= 12, 60, "it trains")

    def _steps(self) -> int:
        ranks = self.cluster.camp.status(self.run).get("ranks") or []
        return min((rank.get("step") or 0 for rank in ranks), default=0)

    def diagnosed(self, which: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        """What `encamp diagnose` says, once it is that."""
        told: dict[str, Any] = {}

        def found() -> bool:
            told.update(self.cluster.camp.run("diagnose", self.run, "--json", code=None).json)
            return which(told)

        try:
            wait_until(found, seconds)
        except AssertionError:
            raise AssertionError(f"still {told.get('verdict')}: {told.get('sentence')}") from None
        return told


def is_rank(pid: int) -> bool:
    """Whether the process is one: Python under the shim."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[2:3] != [] and words[2].endswith(b"/rank.py")


def test_hosts_that_lose_each_other(cluster: Cluster) -> None:
    pair = Pair(cluster, "go-on", "0")
    cluster.lab.cut(cluster.hosts["a"], cluster.hosts["b"])
    began = time.monotonic()
    told = pair.diagnosed(lambda told: told["verdict"] != "healthy")
    assert (told["verdict"], told["culprits"]) == ("network", []), told["sentence"]
    assert "lost each other" in told["sentence"]
    print(f"network after {time.monotonic() - began:.1f} s")
    # Each host by itself comes to the same, and says so on its own.
    wait_until(lambda: cluster.camp.status(pair.run)["state"] == "stalled", 60, "no alarm")


def test_a_rank_that_is_stopped_on_one_of_two_hosts(cluster: Cluster) -> None:
    pair = Pair(cluster, "go-on", "0")
    pid = next(pid for pid in cluster.hosts["b"].processes() if is_rank(pid))
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    told = pair.diagnosed(lambda told: told["verdict"] != "healthy")
    assert (told["verdict"], told["culprits"]) == ("stopped", [1]), told["sentence"]
    assert "rank 1 on b" in told["sentence"]
    print(f"stopped after {time.monotonic() - began:.1f} s")
    os.kill(pid, signal.SIGCONT)
    pair.diagnosed(lambda told: told["verdict"] == "healthy")
