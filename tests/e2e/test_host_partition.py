"""Hosts that do not reach each other any more, and a controller that does not reach them."""

from __future__ import annotations

import re

import pytest
from e2e.cluster import Cluster
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.mark.slow
def test_hosts_that_lose_each_other_while_we_see_both(cluster: Cluster) -> None:
    camp = cluster.camp
    a, b = cluster.add("a"), cluster.add("b")
    run = cluster.launch("a", "b")["run"]
    cluster.lab.cut(a, b)
    status = camp.run("status", "--json").json
    assert [host["state"] for host in status["hosts"]] == ["live", "live"]
    assert [(entry["state"], entry["attempt"]) for entry in status["runs"]] == [("running", 1)]

    refused = camp.run("restart", run, code=1)
    assert "a cannot reach b" in refused.err
    assert "b cannot reach a" in refused.err
    assert cluster.ranks_on("a"), "nothing was stopped for a restart that cannot be"
    assert cluster.ranks_on("b")
    assert camp.status(run)["attempt"] == 1

    restarted = camp.run("restart", run, "--without", "b", "--json").json
    assert (restarted["attempt"], restarted["hosts"], restarted["world_size"]) == (2, ["a"], 1)
    assert cluster.ranks_on("a")
    assert not cluster.ranks_on("b"), "the first attempt was stopped where it could be"


def test_hosts_go_on_while_nobody_can_ask_them(cluster: Cluster) -> None:
    camp = cluster.camp
    cluster.add("a")
    cluster.add("b")
    run = cluster.launch("a", "b", profile=cluster.profile("0.05", script="turns.py"))["run"]
    cluster.lose("b")
    status = camp.status(run)
    assert (status["state"], status["hosts"]) == ("unreachable", ["a", "b"])
    assert "b cannot be asked" in status["reason"]
    cluster.lose("a")
    alone = camp.run("status", "--json", code=3).json
    assert [(entry["id"], entry["state"]) for entry in alone["runs"]] == [(run, "unreachable")]
    assert camp.run("stop", run, code=3).err.startswith("encamp: ")
    log = cluster.hosts["b"].home / f".encamp/runs/{run}/attempts/1/rank1.log"
    before = log.read_text()
    wait_until(lambda: len(log.read_text()) > len(before) + 50, message="it goes on")

    cluster.find("a")
    cluster.find("b")
    status = camp.status(run)
    assert (status["state"], status["attempt"], len(status["ranks"])) == ("running", 1, 2)
    camp.run("stop", run)
    assert turns(camp.run("logs", run, "--rank", "1").out) == turns(log.read_bytes())


@pytest.mark.slow
def test_a_follower_that_loses_all_hosts_and_finds_them_again_misses_nothing(cluster: Cluster) -> None:
    camp = cluster.camp
    a, b = cluster.add("a"), cluster.add("b")
    run = cluster.launch("a", "b", profile=cluster.profile("0.2", script="turns.py"))["run"]
    path = camp.folder / "followed"
    with path.open("wb") as file, camp.start("logs", run, "--rank", "1", "-f", out=file.fileno()) as follower:
        try:
            wait_until(lambda: b"turn " in path.read_bytes(), 30, "it follows")
            cluster.lab.cut(a)
            cluster.lab.cut(b)
            assert follower.stderr is not None
            assert b"b" in follower.stderr.readline()  # it says that the host is lost
            seen = len(path.read_bytes())
            cluster.lab.mend()
            wait_until(lambda: len(path.read_bytes()) > seen, 60, "it goes on")
            assert camp.run("stop", run, "--json").json["state"] == "stopped"
            follower.wait(60)
        finally:
            follower.kill()
    log = b.home / f".encamp/runs/{run}/attempts/1/rank1.log"
    assert turns(path.read_bytes()) == turns(log.read_bytes())
    assert camp.status(run)["attempt"] == 1


def turns(log: bytes) -> list[int]:
    """The numbers in a rank's log, which are every second one, each once."""
    found = [int(number) for number in re.findall(rb"^turn (\d+)$", log, re.MULTILINE)]
    assert found == list(range(found[0], found[-1] + 2, 2))[: len(found)]
    return found
