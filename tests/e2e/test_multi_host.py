"""One run on several hosts, by the command alone: started on all or none, restarted, stopped, with losses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from e2e.cluster import Cluster, said
from waiting import wait_until

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(240)]


def test_two_hosts_from_launch_to_stop(cluster: Cluster) -> None:
    camp = cluster.camp
    a, b = cluster.add("a", noise="vast", sftp=False), cluster.add("b")
    dry = camp.run("launch", cluster.profile(ranks=2), "--on", "a,b", "--dry-run", "--json").json
    assert [command["host"] for command in dry["commands"]] == dry["hosts"] == ["a", "b"]
    for node_rank, command in enumerate(dry["commands"]):
        argv = command["argv"]
        assert argv[argv.index("--node-rank") + 1] == str(node_rank)
    assert cluster.folders("a") == cluster.folders("b") == []

    launched = cluster.launch("b", "a", ranks=2)
    run = launched["run"]
    assert (launched["hosts"], launched["world_size"], launched["nproc_per_node"]) == (["b", "a"], 4, 2)
    assert [node["address"] for node in launched["nodes"]] == [b.address, a.address]
    assert launched["rendezvous"]["address"] == b.address
    status = camp.status(run)
    assert (status["hosts"], status["state"]) == (["b", "a"], "running")
    assert [(rank["rank"], rank["host"]) for rank in status["ranks"]] == [
        (0, "b"), (1, "b"), (2, "a"), (3, "a")
    ]  # fmt: skip
    said(camp, run, 3, "rank 3 of 4 counts 4")
    merged = camp.run("logs", run, "--merged").out.decode()
    assert all(f"[rank {rank}] rank {rank} of 4 counts 4" in merged for rank in range(4))
    assert "Its ranks are 0 to 3" in camp.run("logs", run, "--rank", "4", code=2).err

    restarted = camp.run("restart", run, "--json").json
    assert (restarted["attempt"], restarted["hosts"], restarted["world_size"]) == (2, ["b", "a"], 4)
    said(camp, run, 2, "rank 2 of 4 counts 4")
    camp.run("get", run, "attempts/2/rank3.log", str(camp.folder))
    assert "rank 3 of 4" in (camp.folder / "rank3.log").read_text()

    stopped = camp.run("stop", run, "--json").json
    assert (stopped["state"], [host["name"] for host in stopped["hosts"]]) == ("stopped", ["b", "a"])
    assert camp.run("wait", run, "--json").json["state"] == "stopped"
    assert not cluster.living()


@pytest.mark.slow
def test_three_hosts(cluster: Cluster) -> None:
    for name in "abc":
        cluster.add(name)
    launched = cluster.launch("a", "b", "c")
    assert (launched["hosts"], launched["world_size"]) == (["a", "b", "c"], 3)
    for rank in range(3):
        said(cluster.camp, launched["run"], rank, f"rank {rank} of 3 counts 3")
    stopped = cluster.camp.run("stop", launched["run"], "--json").json
    assert [host["state"] for host in stopped["hosts"]] == ["stopped"] * 3
    assert cluster.runs_nowhere()


@pytest.mark.slow
def test_a_host_that_is_gone_is_left_out_only_when_somebody_says_so(cluster: Cluster) -> None:
    camp = cluster.camp
    _, b, _ = (cluster.add(name) for name in "abc")
    run = cluster.launch("a", "b", "c")["run"]
    said(camp, run, 2, "rank 2 of 3 counts 3")
    cluster.power_cut("b")
    refused = camp.run("restart", run, code=3)
    assert "b: " in refused.err
    assert f"encamp restart {run} --without b" in refused.err
    stopped = camp.run("stop", run, "--json", code=3).json
    assert {host["name"] for host in stopped["hosts"]} == {"a", "c"}
    assert [host["name"] for host in stopped["not_asked"]] == ["b"]
    restarted = camp.run("restart", run, "--without", "b", "--json").json
    assert (restarted["attempt"], restarted["hosts"], restarted["world_size"]) == (2, ["a", "c"], 2)
    said(camp, run, 1, "rank 1 of 2 counts 2")
    events = (cluster.hosts["c"].home / f".encamp/runs/{run}/attempts/2/events.jsonl").read_text()
    assert "without b" in events
    earlier = camp.run("logs", run, "--merged", "--attempt", "1", code=3)
    assert b"[rank 2] rank 2 of 3" in earlier.out
    assert "b cannot be asked" in earlier.err

    cluster.power_on("b")
    wait_until(lambda: "b" in camp.run("status", "b").out.decode(), 30)
    camp.run("get", run, "attempts/1/rank1.log", str(camp.folder))  # only b has it, which the run has left
    assert "rank 1 of 3" in (camp.folder / "rank1.log").read_text()
    assert camp.run("restart", run, "--without", "c", "--json").json["hosts"] == ["a"]
    camp.run("stop", run)
    b.replace()
    assert camp.run("launch", cluster.profile(), "--on", "a,b", code=3).err.startswith("encamp: b: ")


@pytest.mark.slow
def test_what_cannot_work_starts_nowhere(cluster: Cluster) -> None:
    a, b = cluster.add("a"), cluster.add("b")
    cluster.add("n", nat="gw")
    apart = cluster.refused("a", "n")
    assert "a" in apart.err
    assert "n" in apart.err
    assert cluster.folders("a") == cluster.folders("n") == []

    (b.home / "reduce.py").rename(b.home / "elsewhere.py")
    assert "encamp: b: there is no /root/reduce.py" in cluster.refused("a", "b").err
    (b.home / "reduce.py").write_text("import nothing_of_that_name\n")
    broken = cluster.refused("a", "b")
    assert "failed on b" in broken.err
    assert "ModuleNotFoundError" in broken.err
    shutil.move(b.home / "elsewhere.py", b.home / "reduce.py")

    kept = cluster.folders("a")
    runs = b.home / ".encamp" / "runs"
    runs.rename(b.home / ".encamp" / "before")
    runs.write_text("no folder\n")
    refused = cluster.camp.run("launch", cluster.profile(), "--on", "a,b", code=1)
    assert "encamp: b: " in refused.err
    assert cluster.folders("a") == kept, "what a had prepared is taken back"
    runs.unlink()
    (b.home / ".encamp" / "before").rename(runs)

    b.power_cut()
    unreachable = cluster.camp.run("launch", cluster.profile(), "--on", "a,b", code=3)
    assert "encamp: b: " in unreachable.err
    assert cluster.folders("a") == kept
    assert a.running


@pytest.mark.slow
def test_interrupted_before_it_runs_it_leaves_nothing_that_runs(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.add("b")
    with interrupted(cluster, "a: starting", signal.SIGINT) as launch:
        launch.wait(timeout=60)
    assert launch.returncode == 130
    assert not cluster.living()

    with interrupted(cluster, "a: preparing", signal.SIGKILL) as launch:
        launch.wait(timeout=60)
    wait_until(lambda: not cluster.living(), 75, "all has ended")


def interrupted(cluster: Cluster, at: str, by: int) -> subprocess.Popen[bytes]:
    """A launch on a and b that gets a signal as soon as it says `at`."""
    launch = cluster.camp.start("launch", cluster.profile("forever"), "--on", "a,b")
    assert launch.stderr is not None
    for line in launch.stderr:
        if at in line.decode():
            os.kill(launch.pid, by)
            break
    return launch
