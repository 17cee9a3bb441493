"""Every way to lose the daemon, with a run that must not notice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from agent_client import AgentHost, agent_bundle, gone, start_time
from attempts import Lab
from waiting import wait_until

from agent import process, watch, wire


def test_a_killed_daemon_loses_nothing(host: AgentHost) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "say=before", "wait", "say=after")
    viewer.until_log("run-a", "rank0", 7)
    viewer.request("log_follow", run="run-a", attempt=1, stream="rank0", offset=0)
    assert viewer.read_log(7) == b"before\n"
    ranks = viewer.expect(wire.Ranks).ranks
    os.kill(viewer.hello.pid, signal.SIGKILL)
    viewer.wait()
    assert all(process.alive(rank.pid or 0, start_time(rank.pid)) for rank in ranks), "ranks go on"
    again = host.connect("--keep")
    assert again.hello.pid != viewer.hello.pid
    assert [run.state for run in again.seen if isinstance(run, wire.Run)] == ["running"]
    assert again.expect(wire.Ranks).ranks[0].pid == ranks[0].pid
    assert not [message for message in again.seen if isinstance(message, wire.Event)], "told before"
    Path(host.home).parent.joinpath("go").touch()
    again.request("log_follow", run="run-a", attempt=1, stream="rank0", offset=7)
    assert again.read_log(13) == b"after\n"
    assert again.until_run("run-a", "finished").exit_code == 0
    assert again.until_event("finished")


def test_a_new_build_takes_over_while_a_run_goes_on(host: AgentHost) -> None:
    old = host.connect()
    host.launch(old, "run-a", "wait", "say=done")
    pids = [rank.pid for rank in old.expect(wire.Ranks, lambda ranks: ranks.ranks[1].pid is not None).ranks]
    new = host.connect(pyz=host.install(agent_bundle().data + b"\0", "e" * 64))
    assert new.hello.build == "e" * 64
    assert [run.state for run in new.seen if isinstance(run, wire.Run)] == ["running"]
    assert [rank.pid for rank in new.expect(wire.Ranks).ranks] == pids
    wait_until(lambda: gone(old.hello.pid), 5, "the old daemon is gone")
    Path(host.home).parent.joinpath("go").touch()
    assert new.until_run("run-a", "finished")


def test_a_daemon_that_is_replaced_finishes_what_it_was_asked_for(one_host: AgentHost) -> None:
    old = one_host.connect()
    one_host.launch(old, "run-a", "deaf", "say=up", "forever", grace=600.0)
    old.until_log("run-a", "rank0", 3)
    old.until_log("run-a", "rank1", 3)
    old.ask("restart", run="run-a", actor="ann")
    old.until_run("run-a", "stopping")
    new = one_host.connect(pyz=one_host.install(agent_bundle().data + b"\0", "e" * 64))
    assert not gone(old.hello.pid), "it waits for the end of attempt 1"
    ranks = new.expect(wire.Ranks, lambda ranks: ranks.ranks[1].pid is not None).ranks
    for rank in ranks:
        os.kill(rank.pid or 0, signal.SIGKILL)
    assert new.until_run("run-a", "running", attempt=2), "the restart took place"
    wait_until(lambda: gone(old.hello.pid), 5, "the old daemon is gone")


def test_an_orphan_is_named_once_in_a_while(lab: Lab) -> None:
    attempt = lab.running("forever")
    watcher = watch.Watcher(lab.home)
    assert watcher.orphans() == []
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGKILL)
    found = wait_until(watcher.orphans, message="it is seen")
    assert [(orphan.run, orphan.number) for orphan in found] == [(attempt.run, attempt.number)]
    assert watcher.orphans() == [], "its new supervisor takes a moment"


def test_an_attempt_whose_supervisor_was_killed_gets_another(host: AgentHost) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "wait", "say=done")
    viewer.until_run("run-a", "running")
    supervisor = wait_until(lambda: host.supervisor("run-a"), message="the supervisor has signed")
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: host.supervisor("run-a") not in (None, supervisor), message="it is adopted")
    assert "lost its supervisor" in host.log()
    Path(host.home).parent.joinpath("go").touch()
    assert viewer.until_run("run-a", "finished").exit_code == 0


def test_an_attempt_that_lost_everything_is_failed(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    os.kill(viewer.hello.pid, signal.SIGKILL)
    viewer.wait()
    supervisor = one_host.supervisor("run-a") or 0
    assert one_host.home.encode() in Path(f"/proc/{supervisor}/cmdline").read_bytes()
    ours = f"ENCAMP_HOME={one_host.home}".encode()
    for pid in [supervisor, *(pid for pid in process.pids() if ours in process.environ(pid))]:
        os.kill(pid, signal.SIGKILL)
    again = one_host.connect()
    run = next(message for message in again.seen if isinstance(message, wire.Run))
    assert run.state == "failed"
    assert "disappeared" in run.reason
    lost = next(message for message in again.seen if isinstance(message, wire.Ranks))
    assert [rank.state for rank in lost.ranks] == ["lost", "lost"]


def test_a_lost_socket_ends_the_daemon_and_the_next_relay_starts_another(one_host: AgentHost) -> None:
    pid = one_host.connect().hello.pid
    Path(one_host.home, "agent.sock").unlink()
    again = one_host.connect()
    assert again.hello.pid != pid
    wait_until(lambda: gone(pid), 10, "the old daemon has seen that it cannot be reached")


def test_a_removed_home_ends_the_daemon(one_host: AgentHost) -> None:
    pid = one_host.connect().hello.pid
    shutil.rmtree(one_host.home)
    wait_until(lambda: gone(pid), 10, "the daemon is gone")
    assert not Path(one_host.home).exists()


def test_sigterm_ends_the_daemon_and_not_the_run(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    pids = [rank.pid or 0 for rank in viewer.expect(wire.Ranks, lambda r: r.ranks[1].pid is not None).ranks]
    os.kill(viewer.hello.pid, signal.SIGTERM)
    wait_until(lambda: gone(viewer.hello.pid), 10, "the daemon is gone")
    assert not any(gone(pid) for pid in pids)
    assert not Path(one_host.home, "agent.sock").exists()


def test_a_daemon_without_work_ends_by_itself(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "wait")
    viewer.request("retire")
    viewer.wait()
    code = (
        f"import sys; sys.path.insert(0, {one_host.pyz!r}); from agent import daemon\n"
        "daemon.IDLE_SECONDS = 0.5; daemon.TICK_SECONDS = 0.1; sys.exit(daemon.main([]))"
    )
    short = subprocess.Popen(
        [one_host.python, "-c", code], env=one_host.environment(), stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: Path(one_host.home, "agent.sock").exists(), message="it serves")
        with pytest.raises(subprocess.TimeoutExpired):
            short.wait(1.5)  # a live run keeps it
        Path(one_host.home).parent.joinpath("go").touch()
        assert short.wait(20) == 0
        assert b"nothing to do" in (short.stderr.read() if short.stderr else b"")
    finally:
        short.kill()
        short.communicate()
    again = one_host.connect()
    assert [run.state for run in again.seen if isinstance(run, wire.Run)] == ["finished"]
