"""Hosts whose clocks are an hour apart, and hosts at the end of a long and lossy line."""

from __future__ import annotations

import re
import time

import pytest
from e2e.cluster import Cluster, said
from lab.options import Cable

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]

HOUR = 3600


def test_clocks_an_hour_apart(cluster: Cluster) -> None:
    camp = cluster.camp
    cluster.add("a")
    b = cluster.add("b", clock_offset=HOUR)
    began = time.time()
    run = cluster.launch("a", "b", profile=cluster.profile("0.25", "24", script="turns.py"))["run"]
    with camp.start("logs", run, "--merged", "-f") as follower:
        try:
            document = camp.run("status", "--json").json
            (status,) = document["runs"]
            assert status["state"] == "running"
            ages = [rank["age_seconds"] for rank in status["ranks"]]
            ages += [host["age_seconds"] for host in document["hosts"]]
            assert len(ages) == 4
            assert max(ages) < 30
            ended = camp.run("wait", run, "--json", "--timeout", "45", code=1).json
            out, _ = follower.communicate(timeout=30)
        finally:
            follower.kill()
    assert ended["state"] == "failed"
    assert ended["reason"].startswith("b: rank 1 exited with code 3"), "it ended first, by whatever clock"
    assert ended["exit_code"] == 1
    numbers = [int(number) for number in re.findall(rb"turn (\d+)\n", out)]
    followed = [number for number in numbers if number > 12]
    assert sorted(numbers) == list(range(max(numbers) + 1))
    assert followed == sorted(followed), "in the order in which they were said"
    status = camp.status(run)
    assert began - 1 < status["started"] < status["ended"] < time.time() + 1, "by the clock of the first host"
    events = (b.home / f".encamp/runs/{run}/attempts/1/events.jsonl").read_text()
    times = [float(at) for at in re.findall(r'"time": ?([0-9.]+)', events)]
    assert times == sorted(times)
    assert all(began + HOUR - 1 < at < time.time() + HOUR + 1 for at in times), "by its own clock"


@pytest.mark.slow
def test_a_long_and_lossy_line(cluster: Cluster) -> None:
    camp = cluster.camp
    for name in "ab":
        cluster.add(name, cable=Cable(latency_ms=200, loss=0.02))
    run = cluster.launch("a", "b")["run"]
    said(camp, run, 1, "rank 1 of 2 counts 2")
    restarted = camp.run("restart", run, "--json").json
    assert (restarted["attempt"], restarted["hosts"]) == (2, ["a", "b"])
    said(camp, run, 0, "rank 0 of 2 counts 2")
    stopped = camp.run("stop", run, "--json").json
    assert [host["state"] for host in stopped["hosts"]] == ["stopped", "stopped"]
    assert cluster.runs_nowhere()
