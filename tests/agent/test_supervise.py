"""The supervisor with real processes: every way in which an attempt can end, and in which it must not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from attempts import SCRIPTS, Lab, ended, events, log
from waiting import wait_until

from agent import control, ending, files, process, reap, recording, supervise
from agent.attempt import Attempt

MAX_RSS = 14 * 1024 * 1024
"""Bytes of a supervisor: it and the daemon share 40 MiB."""


def exit_of(attempt: Attempt) -> dict[str, object]:
    values = files.read_json(f"{attempt.dir}/exit.json")
    assert values is not None
    return values


def all_ready(attempt: Attempt) -> bool:
    return log(attempt, "rank0") == log(attempt, "rank1") == "ready\n"


# --- under every Python ------------------------------------------------------------------------------------


@pytest.fixture
def any_lab(python: str, home: str, tmp_path: Path) -> object:
    laboratory = Lab(home, tmp_path, python)
    yield laboratory
    laboratory.close()


def test_an_attempt_that_ends_well_is_finished(any_lab: Lab) -> None:
    attempt = any_lab.start("say=hello")
    condition = ended(attempt)
    assert (condition.state, condition.reason, condition.exit_code) == ("finished", "", 0)
    assert exit_of(attempt)["reaped"] == []
    assert events(attempt) == [("finished", "supervisor")]
    assert log(attempt, "rank0") == log(attempt, "rank1") == "hello\n"
    assert log(attempt, "launcher") == ""
    assert Path(attempt.dir, "launcher.log").stat().st_mode & 0o777 == 0o600


def test_a_failing_rank_is_named(any_lab: Lab) -> None:
    attempt = any_lab.start("0:forever", "1:exit=3")
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("failed", 1)
    assert condition.reason == "rank 1 exited with code 3"


def test_a_stop_passes_on_sigterm_and_ends_what_does_not_hear_it(any_lab: Lab) -> None:
    attempt = any_lab.running("1:deaf", "say=ready", "forever", grace=0.5)
    wait_until(lambda: log(attempt, "rank1") == "ready\n")
    deaf = attempt.ranks()[1][0]
    control.stop(any_lab.home, attempt.run, "ann@laptop")
    condition = ended(attempt)
    assert condition.state == "stopped"
    assert (
        condition.reason == "stopped by ann@laptop; 2 processes did not end within 0.5 s and had to be killed"
    )
    assert exit_of(attempt)["reaped"] == [deaf]  # torchrun had to be killed too, but it is no rank


def test_another_supervisor_takes_over(any_lab: Lab) -> None:
    attempt = any_lab.running("wait", "say=survived")
    kill_supervisor(attempt)
    any_lab.supervise(attempt, "--adopt")
    assert not attempt.condition().unwatched
    (any_lab.folder / "go").touch()
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("finished", 0)
    assert log(attempt, "rank0") == "survived\n"


def test_it_is_small(any_lab: Lab) -> None:
    attempt = any_lab.running("forever")
    supervisor = attempt.supervisor()
    assert supervisor is not None
    found = process.stat(supervisor[0])
    assert found is not None
    assert found.rss_bytes < MAX_RSS


# --- ends --------------------------------------------------------------------------------------------------


def kill_supervisor(attempt: Attempt) -> None:
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGKILL)
    wait_until(lambda: not process.alive(*supervisor), message="the supervisor is dead")


def launcher_of(attempt: Attempt) -> tuple[int, int]:
    identity = reap.read_identity(f"{attempt.dir}/launcher.json")
    assert identity is not None
    return identity


def test_an_exception_is_part_of_the_reason(lab: Lab) -> None:
    attempt = lab.start("0:forever", "1:raise=the loss is\tnot a number\nmore about it")
    assert ended(attempt).reason == "rank 1 exited with code 1: ValueError: the loss isnot a number"


def test_a_rank_that_ends_without_a_word_is_named_from_torchrun_s_summary(lab: Lab) -> None:
    assert ended(lab.start("0:forever", "1:now=7")).reason == "rank 1 exited with code 7"


def test_a_killed_rank_is_named_before_those_that_failed_because_of_it(lab: Lab) -> None:
    attempt = lab.start("0:exit=1", "1:kill")
    # Both may be seen dead at once, or rank 0 first or alone: only then it is the one to be named.
    reason = ended(attempt).reason
    assert reason in (
        "rank 1 was killed by SIGKILL",
        "rank 1 was killed by SIGKILL (1 more rank failed too)",
        "rank 0 exited with code 1",
    )


def test_how_a_killed_rank_ended_is_recorded_for_it(lab: Lab) -> None:
    attempt = lab.start("0:forever", "1:kill")
    assert ended(attempt).reason == "rank 1 was killed by SIGKILL"
    values = files.read_json(str(Path(attempt.dir, "rank1", "exit.json"))) or {}
    assert values["code"] == -signal.SIGKILL


def test_ranks_that_fail_alike_are_counted(lab: Lab) -> None:
    attempt = lab.start("exit=4", nproc=3)
    reason = ended(attempt).reason
    assert "exited with code 4" in reason


def test_the_death_of_torchrun_ends_its_ranks(lab: Lab) -> None:
    attempt = lab.running("forever")
    ranks = [identity[0] for identity in attempt.ranks().values()]
    os.kill(launcher_of(attempt)[0], signal.SIGKILL)
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("failed", -9)
    assert (
        condition.reason == "torchrun was killed by SIGKILL; 2 processes that it left behind had to be ended"
    )
    assert exit_of(attempt)["reaped"] == sorted(ranks)


def test_children_that_outlive_the_ranks_are_ended(lab: Lab) -> None:
    attempt = lab.start("0:orphan", "1:nameless")
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("finished", 0)
    assert condition.reason == "2 processes that outlived the ranks had to be ended"
    reaped = exit_of(attempt)["reaped"]
    assert isinstance(reaped, list)
    assert len(reaped) == 2
    assert not any(process.start_time(pid) for pid in reaped), "they were not even left as zombies"


def test_helpers_that_end_by_themselves_are_left_alone(lab: Lab) -> None:
    attempt = lab.start("late")
    condition = ended(attempt)
    assert (condition.state, condition.reason) == ("finished", "")
    assert exit_of(attempt)["reaped"] == []


def test_a_launcher_that_cannot_be_executed_is_a_reason(lab: Lab) -> None:
    lab.python, python = str(lab.folder / "gone" / "python"), lab.python
    attempt = lab.create("say=x")
    lab.python = python
    lab.supervise(attempt)
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("failed", 127)
    assert condition.reason.startswith(
        "torchrun exited with code 127 before any rank started: encamp: cannot start"
    )


def test_a_launcher_that_fails_by_itself_is_quoted(lab: Lab) -> None:
    broken = lab.folder / "broken.py"
    broken.write_text("raise SystemExit('error: \\x1b[31munrecognized\\x1b[0m arguments')\n")
    attempt = lab.create("say=x", launcher=str(broken))
    lab.supervise(attempt)
    reason = ended(attempt).reason
    assert reason.startswith("torchrun exited with code 1 before any rank started: error:")
    assert "\x1b" not in reason


def test_the_launcher_starts_clean(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No blocked or ignored signals, three descriptors, its own session, none of the login's variables."""
    probe = lab.folder / "probe.py"
    probe.write_text(
        "import json, os, re\n"
        "status = open('/proc/self/status').read()\n"
        "out = {n: int(re.search(n + r':\\s*(\\w+)', status)[1], 16) for n in ('SigBlk', 'SigIgn')}\n"
        "out['fds'] = {fd: os.readlink('/proc/self/fd/%d' % fd) for fd in range(3)}\n"
        "out['more'] = [fd for fd in range(3, 64) if os.path.exists('/proc/self/fd/%d' % fd)]\n"
        "out.update(leads=os.getsid(0) == os.getpid(), env=dict(os.environ), cwd=os.getcwd())\n"
        "json.dump(out, open('seen.json', 'w'))\n"
    )
    monkeypatch.setenv("SSH_CONNECTION", "203.0.113.7 1 203.0.113.8 22")
    monkeypatch.setenv("ENCAMP_RANK_DIR", "/elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    attempt = lab.create("say=x", launcher=str(probe))
    lab.supervise(attempt)
    assert ended(attempt).state == "finished"
    seen = json.loads((lab.folder / "seen.json").read_text())
    python_s_own = (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)
    assert seen["SigBlk"] == 0
    standard = (1 << 31) - 1  # the others are the C library's, or were ignored by what started the tests
    assert seen["SigIgn"] & standard & ~python_s_own == 0
    log_file = f"{attempt.dir}/launcher.log"
    assert seen["fds"] == {"0": "/dev/null", "1": log_file, "2": log_file}
    assert seen["more"] == []
    assert seen["leads"]
    assert seen["cwd"] == str(lab.folder)
    assert seen["env"]["KEPT"] == "yes"
    assert seen["env"]["ENCAMP_RUN"] == attempt.run
    assert not {"SSH_CONNECTION", "ENCAMP_RANK_DIR"} & set(seen["env"])


# --- stops -------------------------------------------------------------------------------------------------


def test_a_stop_that_is_heard_kills_nobody(lab: Lab) -> None:
    attempt = lab.running("gentle", "say=ready", "forever")
    wait_until(lambda: all_ready(attempt))
    control.stop(lab.home, attempt.run, "ann")
    assert attempt.condition().state in ("stopping", "stopped")
    condition = ended(attempt)
    assert (condition.state, condition.reason) == ("stopped", "stopped by ann")
    assert exit_of(attempt)["reaped"] == []
    assert events(attempt) == [("stop", "ann"), ("stopped", "supervisor")]


def test_a_second_stop_shortens_the_first(lab: Lab) -> None:
    attempt = lab.running("deaf", "say=ready", "forever")
    wait_until(lambda: all_ready(attempt))
    control.stop(lab.home, attempt.run, "ann", 600.0)
    wait_until(lambda: "SIGTERM" in log(attempt, "launcher"), message="torchrun has passed it on")
    assert not attempt.condition().over
    control.stop(lab.home, attempt.run, "ben", 0.0)
    condition = ended(attempt)
    assert condition.state == "stopped"
    assert condition.reason.startswith("stopped by ben")


def test_a_second_stop_does_not_lengthen_the_first(lab: Lab) -> None:
    attempt = lab.running("deaf", "say=ready", "forever")
    wait_until(lambda: all_ready(attempt))
    control.stop(lab.home, attempt.run, "ann", 1.0)
    control.stop(lab.home, attempt.run, "ben", 600.0)
    assert ended(attempt).state == "stopped"


def test_a_stopped_rank_is_woken_up_to_be_ended(lab: Lab) -> None:
    attempt = lab.running("gentle", "say=ready", "forever")
    wait_until(lambda: all_ready(attempt))
    os.kill(attempt.ranks()[1][0], signal.SIGSTOP)
    control.stop(lab.home, attempt.run, "ann", 600.0)
    assert ended(attempt).reason == "stopped by ann"


def test_a_stop_before_the_start_counts(lab: Lab) -> None:
    attempt = lab.create("forever")
    control.stop(lab.home, attempt.run, "ann", 5.0)
    lab.supervise(attempt)
    assert ended(attempt).state == "stopped"


def test_stopping_what_has_ended_changes_nothing(lab: Lab) -> None:
    attempt = lab.start("say=x")
    ended(attempt)
    assert control.stop(lab.home, attempt.run, "ann").condition().state == "finished"
    assert not Path(attempt.dir, "stop.json").exists()


def test_a_run_that_finishes_in_spite_of_a_stop_is_finished(lab: Lab) -> None:
    attempt = lab.running("wait")
    (lab.folder / "go").touch()
    stop = {"time": 1.0, "actor": "ann", "grace_seconds": 9.0}
    files.write_json(f"{attempt.dir}/stop.json", stop)
    assert ended(attempt).state == "finished"


def test_sigterm_to_the_supervisor_alone_ends_the_attempt_as_failed(lab: Lab) -> None:
    attempt = lab.running("forever")
    supervisor = attempt.supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], signal.SIGTERM)
    condition = ended(attempt)
    assert condition.state == "failed"
    assert condition.reason.startswith("the supervisor was told to end (SIGTERM): is the host shutting down?")


# --- supervisors that are killed ---------------------------------------------------------------------------


def test_without_a_supervisor_a_run_goes_on_unwatched(lab: Lab) -> None:
    attempt = lab.running("wait", "1:now=5")
    kill_supervisor(attempt)
    condition = attempt.condition()
    assert (condition.state, condition.unwatched) == ("running", True)
    lab.supervise(attempt, "--adopt")
    (lab.folder / "go").touch()
    condition = ended(attempt)
    assert (condition.state, condition.exit_code) == ("failed", None)
    assert condition.reason == "rank 1 exited with code 5"


def test_a_stop_of_an_unwatched_attempt_finds_itself_a_supervisor(lab: Lab) -> None:
    attempt = lab.running("forever")
    kill_supervisor(attempt)
    control.stop(lab.home, attempt.run, "ann", 10.0)
    condition = ended(attempt)
    assert (condition.state, condition.reason) == ("stopped", "stopped by ann")


def test_ranks_without_torchrun_and_supervisor_are_ended_by_the_next_one(lab: Lab) -> None:
    attempt = lab.running("forever", "0:orphan")
    kill_supervisor(attempt)
    launcher = launcher_of(attempt)
    os.kill(launcher[0], signal.SIGKILL)
    wait_until(lambda: not process.alive(*launcher), message="torchrun is dead")
    lab.supervise(attempt, "--adopt")
    condition = ended(attempt)
    assert condition.state == "failed"
    assert "left behind had to be ended" in condition.reason
    reaped = exit_of(attempt)["reaped"]
    assert isinstance(reaped, list)
    assert {identity[0] for identity in attempt.ranks().values()} <= set(reaped)


def test_what_has_lost_every_parent_is_found_by_its_marks(lab: Lab) -> None:
    attempt = lab.running("0:detached", "wait")
    kill_supervisor(attempt)
    lab.supervise(attempt, "--adopt")
    (lab.folder / "go").touch()
    assert ended(attempt).reason == "1 process that outlived the ranks had to be ended"


def test_a_supervisor_that_came_no_further_than_the_fork_is_replaced(lab: Lab) -> None:
    attempt = lab.running("wait")
    kill_supervisor(attempt)
    Path(attempt.dir, "launcher.json").unlink()
    lab.supervise(attempt, "--adopt")
    (lab.folder / "go").touch()
    assert ended(attempt).state == "finished"


def test_an_attempt_has_one_supervisor_only(lab: Lab) -> None:
    attempt = lab.running("forever")
    first = attempt.supervisor()
    second = lab.supervise(attempt, "--adopt")
    assert second.wait(20) == 3
    assert attempt.supervisor() == first
    assert attempt.condition().state == "running"


def test_a_folder_that_is_no_attempt_is_refused(lab: Lab, tmp_path: Path) -> None:
    attempt = lab.create("say=x")
    Path(attempt.dir, "spec.json").unlink()
    refused = lab.supervise(attempt)
    _, error = refused.communicate(timeout=20)
    assert refused.returncode == 1
    assert b"no spec.json that can be read" in error


# --- details -----------------------------------------------------------------------------------------------


def test_the_end_is_recorded_once_there_is_space_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = lab.create("say=x")
    write, refusals = files.write_json, [28, 122]  # ENOSPC, EDQUOT

    def full(path: str, value: object) -> None:
        if refusals:
            raise OSError(refusals.pop(), "no space")
        write(path, value)

    supervisor = supervise.Supervisor(attempt.dir, attempt.spec(), attempt.resolved())
    monkeypatch.setattr(files, "write_json", full)
    monkeypatch.setattr(recording, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "_pause", lambda seconds: None)
    supervisor._record_end()
    assert not refusals
    assert attempt.condition().over


def test_processes_killed_for_want_of_memory_are_counted() -> None:
    count = ending.oom_kills()
    assert count is None or count >= 0


def test_a_rank_killed_for_want_of_memory_is_told_so(lab: Lab) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"encamp-test-{os.getpid()}"
    v2 = not group.parent.exists()
    if v2:
        group = Path("/sys/fs/cgroup") / group.name
    try:
        group.mkdir()
        (group / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(96 * 1024 * 1024))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        hungry = lab.folder / "hungry.py"
        hungry.write_text("import os\nif os.environ['RANK'] == '1':\n    x = b'x' * (1 << 30)\n")
        attempt = lab.create("say=x")
        argv = [
            str(hungry) if word == str(SCRIPTS / "behave.py") else word for word in attempt.resolved()["argv"]
        ]
        spec = {**attempt.spec(), "resolved": {**attempt.resolved(), "argv": argv}}
        files.write_json(f"{attempt.dir}/spec.json", spec)
        inside = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        command = control.instance.agent_command("supervise", attempt.dir)
        subprocess.run(
            ["/bin/sh", "-c", inside, "sh", *command], check=True, timeout=60, stdout=subprocess.DEVNULL
        )
        assert ended(attempt).reason == "rank 1 was killed by SIGKILL (out of memory)"
    finally:
        wait_until(lambda: _removed(group), message="the control group is gone")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


SUMMARY = """\
W1130 12:00:00.000000 700 api.py:1000] Sending process 102 closing signal SIGTERM
E1130 12:00:00.000000 700 api.py:1015] failed (exitcode: 1) local_rank: 0 (pid: 101) of binary: python
============================================================
rank.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_12:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code1} (pid: {pid1})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_12:00:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {code0} (pid: 101)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("code0", "code1", "pid1", "times", "expected"),
    [
        (1, -15, 102, {}, "rank 0 exited with code 1"),
        (1, -9, 103, {}, "rank 1 was killed by SIGKILL (1 more rank failed too)"),
        (1, -9, 102, {}, "rank 0 exited with code 1"),
        (1, -6, 103, {0: 5.0}, "rank 0 exited with code 1 (1 more rank failed too)"),
        (1, -11, 103, {0: 5.0}, "rank 1 was killed by SIGSEGV (1 more rank failed too)"),
        (1, 1, 103, {0: 5.0, 1: 4.0}, "rank 1 exited with code 1 (1 more rank failed too)"),
        (-15, -15, 103, {}, "rank 0 was killed by SIGTERM (1 more rank failed too)"),
    ],
    ids=["told to end", "killed", "killed after being told", "abort", "crash", "earlier", "both by SIGTERM"],
)
def test_the_cause_is_found_among_the_failures(
    tmp_path: Path, code0: int, code1: int, pid1: int, times: dict[int, float], expected: str
) -> None:
    (tmp_path / "launcher.log").write_text(SUMMARY.format(code0=code0, code1=code1, pid1=pid1))
    for rank, at in times.items():
        (tmp_path / f"rank{rank}").mkdir()
        files.write_json(str(tmp_path / f"rank{rank}" / "exit.json"), {"code": 1, "time": at})
    assert ending.reason_of_failure(str(tmp_path), range(2), 1, "torchrun") == expected


def test_a_rank_that_failed_without_a_word_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    (tmp_path / "launcher.log").write_text(SUMMARY.format(code0=1, code1=1, pid1=102))
    reason = ending.reason_of_failure(str(tmp_path), range(1), 1, "torchrun")
    assert reason.startswith("rank 0 exited with code 1 (no space is left on the disk)")


def test_a_reason_is_one_bounded_line_that_is_safe_to_show(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    start = time.time()
    files.write_json(str(tmp_path / "rank0" / "exit.json"), {"code": 1, "time": start})
    error = {"type": "Error", "message": "\x1b]0;title\x07" + "y" * 10_000 + "\nsecond line", "traceback": ""}
    files.write_json(str(tmp_path / "rank0" / "error.json"), error)
    reason = ending.reason_of_failure(str(tmp_path), range(1), 1, "torchrun")
    assert reason.startswith("rank 0 exited with code 1: Error: ]0;title")
    assert reason.isprintable()
    assert len(reason) < 400
