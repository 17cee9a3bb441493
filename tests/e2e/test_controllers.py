"""Whoever launches on several hosts is killed on the way, or is not the only one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from e2e.camp import Camp, ended
from e2e.cluster import Cluster, wait_until_frozen
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.mark.slow
def test_what_a_killed_controller_has_begun_ends_within_a_minute(cluster: Cluster) -> None:
    cluster.add("a")
    b = cluster.add("b")
    words = ("launch", cluster.profile("forever"), "--on", "a,b")
    with (
        cluster.frozen_at("prepared,prepared", *words),
        cluster.frozen_at("starting,starting,stop,started", *words) as half,
    ):
        cluster.lab.cut(b)
        half.send_signal(signal.SIGCONT)
        wait_until_frozen(half)  # a was started, and b is not to hear of it
    wait_until(lambda: cluster.ranks_on("a"), 15, "a was told to start")
    assert not cluster.ranks_on("b"), "b was not"
    wait_until(lambda: not cluster.ranks_on("a"), 60, "nothing runs on a")
    cluster.lab.mend()
    wait_until(lambda: not cluster.living(), 30, "and all say so")
    reasons = {run["id"]: run["reason"] for run in cluster.runs()}
    assert len(reasons) == 2
    assert all("the encamp that launched it was lost" in reason for reason in reasons.values())
    assert cluster.runs_nowhere()

    again = cluster.camp.run("restart", next(iter(reasons)), "--json").json
    assert (again["attempt"], again["hosts"]) == (2, ["a", "b"])


def test_of_two_who_launch_at_once_on_the_same_hosts_one_gets_all_of_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name in "ab":
        cluster.add(name, gpus=1)
    (tmp_path / "bob").mkdir()
    ann, bob = cluster.camp, Camp(tmp_path / "bob")
    for name in "ab":
        cluster.note_down(bob, name)
    ann.env["LOGNAME"], bob.env["LOGNAME"] = "ann", "bob"
    profile = cluster.profile("forever")
    started = {
        "ann": ann.start("launch", profile, "--on", "a,b", "--json"),
        "bob": bob.start("launch", profile, "--on", "b,a", "--json"),
    }
    both = {name: ended(process) for name, process in started.items()}
    assert sorted(done.code for done in both.values()) == [0, 1], both
    (winner,) = [name for name, done in both.items() if not done.code]
    (loser,) = [name for name, done in both.items() if done.code]
    assert f"GPU 0 by attempt 1 of {both[winner].json['run']}, launched by {winner}@" in both[loser].err
    (run,) = [run for run in cluster.runs() if run["state"] == "running"]
    assert (run["id"], sorted(run["hosts"])) == (both[winner].json["run"], ["a", "b"])
    assert cluster.folders("a") == cluster.folders("b") == [run["id"]], "the other has nothing anywhere"


@pytest.mark.slow
@pytest.mark.parametrize("names", ["a", "ab"])
def test_of_two_who_restart_at_once_one_does_and_the_other_leaves_it_alone(
    cluster: Cluster, tmp_path: Path, names: str
) -> None:
    for name in names:
        cluster.add(name)
    (tmp_path / "bob").mkdir()
    ann, bob = cluster.camp, Camp(tmp_path / "bob")
    for name in names:
        cluster.note_down(bob, name)
    bob.run("status", "--json")
    run = cluster.launch(*names)["run"]
    started = [camp.start("restart", run, "--json") for camp in (ann, bob)]
    winner, loser = sorted(map(ended, started), key=lambda done: done.code)
    assert (winner.code, loser.code) == (0, 1), (winner, loser)
    assert winner.json["attempt"] == 2
    assert "attempt 2" in loser.err.lower() or "just being started" in loser.err, loser
    (now,) = cluster.runs()
    assert (now["state"], now["attempt"], sorted(now["hosts"])) == ("running", 2, sorted(names))
    assert all(cluster.ranks_on(name) for name in names)
