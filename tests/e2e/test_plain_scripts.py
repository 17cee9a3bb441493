"""A plain user script on a real OpenSSH server, from `hosts add` to `stop`, by the command alone."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.camp import BEHAVE, SCRIPTS, Camp, grown, log_file
from ssh.sshd import Sshd
from waiting import wait_until

from tui.fleet.ssh.server import processes_of

pytestmark = [pytest.mark.sshd, pytest.mark.torch]

TALK = SCRIPTS / "talk.py"


def complete_lines(data: bytes, rank: int) -> int:
    """Check that the talk of a rank has no gap and no duplicate, and return how many lines it has."""
    numbers = [int(number) for number in re.findall(rb"^rank %d line (\d+) " % rank, data, re.MULTILINE)]
    assert numbers == list(range(len(numbers)))
    return len(numbers)


def daemon_of(server: Sshd) -> int:
    """Process id of the agent's daemon."""
    return int((server.home / ".encamp" / "agent.lock").read_text().split()[0])


def processes_of_run(server: Sshd, run: str) -> list[int]:
    """What lives of a run on the host."""
    mark = f"ENCAMP_RUN={run}".encode()
    return [
        pid
        for pid in processes_of(server.home)
        if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]


def test_launch_follow_cut_reconnect_stop(camp: Camp, box: Sshd) -> None:
    run = camp.launch(TALK)
    log = log_file(box, run, "rank1")
    followed = camp.folder / "followed"
    with followed.open("wb") as file:
        follower = camp.start("logs", run, "--rank", "1", "-f", out=file.fileno())
    try:
        seen = grown(followed)
        assert box.cut() >= 1
        written = grown(log, seen)
        grown(followed, written)

        status = camp.status(run)
        assert (status["state"], status["attempt"], status["hosts"]) == ("running", 1, ["box"])
        assert (status["strategy"], status["world_size"]) == ("ddp", 2)
        assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
        for rank in status["ranks"]:
            assert (rank["state"], rank["host"], rank["local_rank"]) == ("running", "box", rank["rank"])
            assert Path(f"/proc/{rank['pid']}").exists()
            assert rank["rss_bytes"] > 1_000_000
            assert rank["exit_code"] is None

        stopped = camp.run("stop", run, "--json").json
        assert (stopped["run"], stopped["state"]) == (run, "stopped")
        _, err = follower.communicate(timeout=20)
    finally:
        follower.kill()
    assert follower.returncode == 0, err
    assert b"Going on when box answers again" in err
    data = followed.read_bytes()
    assert data == log.read_bytes()
    assert data.endswith(b"rank 1 leaves\n")
    assert complete_lines(data, 1) > 100
    assert processes_of_run(box, run) == []

    assert camp.run("logs", run, "--rank", "1").out == data
    assert camp.run("logs", run[:-1], "--rank", "1", "--tail", "3").out == b"".join(
        data.splitlines(keepends=True)[-3:]
    )
    part = camp.run("logs", run, "--rank", "1", "--tail", "2", "--json").json["streams"][0]
    assert part["data"].encode() == b"".join(data.splitlines(keepends=True)[-2:])
    assert part["offset"] + part["bytes"] == len(data)
    waited = camp.run("wait", run, "--json").json
    assert (waited["run"], waited["state"]) == (run, "stopped")
    assert camp.status(run)["state"] == "stopped"


def test_a_killed_daemon_loses_nothing_and_stops_nothing(camp: Camp, box: Sshd) -> None:
    run = camp.launch(TALK)
    ranks = {rank["rank"]: rank["pid"] for rank in camp.status(run)["ranks"]}
    with camp.start("logs", run, "-f") as follower:
        grown(log_file(box, run, "rank0"))
        before = daemon_of(box)
        os.kill(before, signal.SIGKILL)
        size = log_file(box, run, "rank0").stat().st_size
        assert {rank["rank"]: rank["pid"] for rank in camp.status(run)["ranks"]} == ranks
        assert daemon_of(box) != before
        grown(log_file(box, run, "rank0"), size)
        camp.run("stop", run)
        data, err = follower.communicate(timeout=20)
    assert follower.returncode == 0, err
    assert data == log_file(box, run, "rank0").read_bytes()
    assert complete_lines(data, 0) > 100


def test_two_viewers_get_the_same_and_everything(camp: Camp, box: Sshd) -> None:
    run = camp.launch(TALK)
    viewers = [camp.start("logs", run, "-f"), camp.start("logs", run, "--merged", "-f")]
    try:
        size = grown(log_file(box, run, "rank0"))
        grown(log_file(box, run, "rank0"), size)
        with camp.start("logs", run, "-f") as third:
            assert third.stdout is not None
            third.stdout.read(100)
            third.send_signal(signal.SIGINT)
            _, err = third.communicate(timeout=20)
        assert (third.returncode, err) == (130, b""), "one that leaves does so quietly"
        camp.run("stop", run)
        (one, _), (merged, _) = [viewer.communicate(timeout=20) for viewer in viewers]
    finally:
        for viewer in viewers:
            viewer.kill()
    assert [viewer.returncode for viewer in viewers] == [0, 0]
    assert one == log_file(box, run, "rank0").read_bytes()
    for rank in (0, 1):
        prefix = b"[rank %d] " % rank
        lines = [line[len(prefix) :] for line in merged.splitlines(keepends=True) if line.startswith(prefix)]
        assert b"".join(lines) == log_file(box, run, f"rank{rank}").read_bytes()


def test_restart_is_attempt_2_and_both_logs_stay(camp: Camp, box: Sshd) -> None:
    run = camp.launch(BEHAVE, "say=hello", "gentle", "forever")
    restarted = camp.run("restart", run, "--json").json
    unknown = {"step": None, "lost_steps": None, "lost_seconds": None}
    assert restarted == {"run": run, "attempt": 2, "hosts": ["box"], "world_size": 2, "from": unknown}
    assert camp.run("wait", run, "--state", "running", "--timeout", "20", "--json").json["attempt"] == 2
    assert camp.run("logs", run, "--attempt", "1").out == b"hello\n"
    assert camp.run("logs", run).out == b"hello\n"
    assert camp.run("logs", run, "--attempt", "3", code=2).err.startswith("encamp: ")
    late = camp.run("wait", run, "--timeout", "0.2", code=1)
    assert "within 0.2 s" in late.err
    camp.run("stop", run, "--grace", "5")
    assert camp.run("wait", run, "--state", "finished", "--json", code=1).json["state"] == "stopped"


def test_a_script_that_does_not_exist_is_refused_by_name(camp: Camp) -> None:
    done = camp.run("launch", camp.profile("/nowhere/train.py"), "--on", "box", "--json", code=1)
    assert "/nowhere/train.py" in done.err
    assert done.json["error"]["code"] == "no-script"


def test_a_script_that_dies_at_import_shows_its_traceback(camp: Camp) -> None:
    done = camp.run("launch", camp.profile(SCRIPTS / "broken_import.py"), "--on", "box", "--json", code=1)
    assert "there_is_no_such_module_anywhere" in done.err
    assert "Traceback" in done.err
    error = done.json["error"]
    assert "ModuleNotFoundError" in error["tail"]
    assert "rank.py" not in error["tail"], "frames of ours"
    failed = camp.run("wait", error["run"], "--json", code=1).json
    assert failed["state"] == "failed"
    assert camp.run("wait", error["run"], "--state", "failed").code == 0


@pytest.fixture(scope="module")
def ugly(camp: Camp) -> str:
    """A run that printed what is hard to handle, and finished at once."""
    run = camp.launch(SCRIPTS / "ugly.py")
    assert camp.run("wait", run, "--json").json["state"] == "finished"
    return run


@pytest.mark.slow
def test_binary_and_a_line_of_10_mb_arrive_byte_for_byte(camp: Camp, box: Sshd, ugly: str) -> None:
    data = log_file(box, ugly, "rank0").read_bytes()
    assert len(data) > 10_000_000
    assert camp.run("logs", ugly, "-f").out == data
    assert camp.run("logs", ugly, "--tail", "1").out == b"end without a newline"
    assert camp.run("logs", ugly, "--merged").out.count(b"[rank 1] yyyy") == 1
    ranks = camp.status(ugly)["ranks"]
    assert [(rank["state"], rank["exit_code"]) for rank in ranks] == [("exited", 0)] * 2
    assert [rank["log_bytes"] for rank in ranks] == [len(data)] * 2


def test_on_a_terminal_a_log_cannot_do_anything(camp: Camp, ugly: str) -> None:
    shown = subprocess.run(
        ["script", "-qec", shlex.join([sys.executable, "-m", "tui", "logs", ugly]), "/dev/null"],
        env=camp.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    ).stdout
    assert b"\x1b[31mred\x1b[0m" in shown, "colours are fine"
    assert b"end without a newline" in shown
    rest = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", rest)
    assert b"owned" not in rest, "nothing of a sequence is left as text"


def test_deaf_ranks_and_children_that_outlive_them_are_ended(camp: Camp, box: Sshd) -> None:
    run = camp.launch(BEHAVE, "deaf", "orphan", "detached", "forever")
    # torchrun, two ranks, and two orphans of each rank
    members = wait_until(lambda: pids if len(pids := processes_of_run(box, run)) >= 7 else [])
    stopped = camp.run("stop", run, "--grace", "0.5", "--json").json
    assert stopped["state"] == "stopped"
    assert processes_of_run(box, run) == []
    assert set(stopped["reaped"]) <= set(members)
    assert len(stopped["reaped"]) >= 4


def test_a_dry_run_prints_what_would_run_and_starts_nothing(camp: Camp, box: Sshd) -> None:
    profile = camp.profile(BEHAVE, "say=a b", name="dry")
    words = ["launch", profile, "--on", "box", "--set", "env.GREETING=it's", "--dry-run"]
    done = camp.run(*words, "--", "say=$HOME")
    line = done.out.decode()
    assert line.count("\n") == 1
    argv = shlex.split(line)
    assert argv[:3] == ["cd", str(box.home), "&&"]
    assert "GREETING=it's" in argv
    assert "torch.distributed.run" in argv
    assert argv[-3:] == [str(BEHAVE), "say=a b", "say=$HOME"]
    planned = camp.run(*words, "--json").json
    assert planned["world_size"] == 2
    assert planned["env"]["GREETING"] == "it's"
    by_hand = subprocess.run(
        ["sh", "-c", planned["by_hand"]], capture_output=True, text=True, timeout=60, check=False
    )
    assert by_hand.returncode == 0, by_hand.stderr
    assert by_hand.stdout.count("a b") == 2
    assert not any("dry" in entry["id"] for entry in camp.run("status", "--json").json["runs"])
