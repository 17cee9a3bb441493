"""Runs on several hosts of which one loses its power, is started again, or is replaced by another machine."""

from __future__ import annotations

import signal

import pytest
from e2e.cluster import Cluster, said
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


def test_a_host_without_power_before_the_launch_and_after_it(cluster: Cluster) -> None:
    camp = cluster.camp
    cluster.add("a")
    cluster.add("b")
    cluster.power_cut("b")
    refused = cluster.refused("a", "b", code=3)
    assert refused.err.count("encamp: b: ") == 1
    assert cluster.folders("a") == []
    cluster.power_on("b")

    run = cluster.launch("a", "b")["run"]
    cluster.power_cut("b")
    status = camp.status(run)
    assert (status["state"], status["hosts"]) == ("unreachable", ["a", "b"])
    assert "b cannot be asked" in status["reason"]
    again = camp.run("restart", run, code=3)
    assert f"encamp restart {run} --without b" in again.err
    assert cluster.ranks_on("a"), "what still lives is left alone"

    restarted = camp.run("restart", run, "--without", "b", "--json").json
    assert (restarted["attempt"], restarted["hosts"], restarted["world_size"]) == (2, ["a"], 1)
    said(camp, run, 0, "rank 0 of 1 counts 1")
    assert camp.run("stop", run, "--json").json["state"] == "stopped"
    assert not cluster.ranks_on("a")


def test_what_is_left_is_stopped_and_what_cannot_be_asked_is_named(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.add("b")
    run = cluster.launch("a", "b")["run"]
    cluster.power_cut("b")
    stopped = cluster.camp.run("stop", run, "--json", code=3)
    assert [host["name"] for host in stopped.json["hosts"]] == ["a"]
    assert [host["name"] for host in stopped.json["not_asked"]] == ["b"]
    assert "b" in stopped.err
    assert not cluster.ranks_on("a")
    status = cluster.camp.status(run)
    assert status["state"] == "unreachable"
    assert "b cannot be asked: whether its ranks still live is not known" in status["reason"]
    cluster.power_on("b")
    assert cluster.camp.status(run)["state"] in ("stopped", "failed")
    assert cluster.runs_nowhere()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "reason"),
    [("prepared", "encamp: b: "), ("started", " failed on b: the host was rebooted")],
)
def test_a_reboot_while_it_is_started(cluster: Cluster, stage: str, reason: str) -> None:
    cluster.add("a")
    b = cluster.add("b")
    words = ("launch", cluster.profile("forever"), "--on", "a,b")
    with cluster.frozen_at(f"{stage},{stage}", *words) as launch:
        b.reboot()
        launch.send_signal(signal.SIGCONT)
        _, errors = launch.communicate(timeout=60)
    assert launch.returncode in (1, 3), errors
    assert reason in errors.decode()
    assert "the host was rebooted" in errors.decode()
    assert cluster.runs_nowhere()


def test_a_reboot_ends_a_run_which_then_starts_anew(cluster: Cluster) -> None:
    camp = cluster.camp
    cluster.add("a")
    b = cluster.add("b")
    run = cluster.launch("a", "b")["run"]
    boot = b.boot_id
    b.reboot()
    assert b.boot_id != boot
    status = camp.status(run)
    assert status["state"] == "failed"
    assert "b: the host was rebooted" in status["reason"]
    assert not [rank for rank in status["ranks"] if rank["host"] == "b" and rank["state"] == "running"]
    restarted = camp.run("restart", run, "--json").json
    assert (restarted["attempt"], restarted["hosts"], restarted["world_size"]) == (2, ["a", "b"], 2)
    said(camp, run, 1, "rank 1 of 2 counts 2")


@pytest.mark.slow
def test_another_machine_at_the_address_of_a_host(cluster: Cluster) -> None:
    camp = cluster.camp
    cluster.add("a")
    b = cluster.add("b")
    run = cluster.launch("a", "b")["run"]
    b.replace()

    status = camp.run("status", "--json").json
    assert {host["name"]: host["state"] for host in status["hosts"]} == {"a": "live", "b": "key-changed"}
    assert status["runs"][0]["state"] == "unreachable"
    refused = camp.run("restart", run, code=3)
    assert "host key" in refused.err
    assert "encamp hosts forget-key b" in refused.err

    camp.run("hosts", "forget-key", "b")
    camp.run("status", "--accept-new-host-key")
    status = camp.status(run)
    assert status["state"] == "failed"
    assert "b was replaced: another machine answers at its address" in status["reason"]
    refused = camp.run("restart", run, code=3)
    assert "b was replaced" in refused.err
    assert f"encamp restart {run} --without b" in refused.err
    stopped = camp.run("stop", run, "--json", code=None).json
    assert [host["name"] for host in stopped["hosts"]] == ["a"]
    assert [host["name"] for host in stopped["not_asked"]] == ["b"]
    assert cluster.folders("b") == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["prepared", "started"])
def test_power_lost_in_silence_while_it_is_started(cluster: Cluster, stage: str) -> None:
    cluster.add("a")
    b = cluster.add("b")
    words = ("launch", cluster.profile("forever"), "--on", "a,b")
    with cluster.frozen_at(f"{stage},{stage}", *words) as launch:
        b.power_cut()
        launch.send_signal(signal.SIGCONT)
        _, errors = launch.communicate(timeout=150)
    assert launch.returncode == 3, errors
    assert "encamp: b" in errors.decode()
    wait_until(lambda: not cluster.ranks_on("a"), 45, "nothing runs on a")
    assert not cluster.living()
    b.power_on()
    assert cluster.runs_nowhere()
