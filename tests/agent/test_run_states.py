"""Runs on the disk: launching, restarting, stopping, reading back, and what state follows from what is there.

torchrun is a stand-in here (see the fixture `fake_torch`); everything else is real.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import Lab, ended, events, launch, log, plan, restart
from waiting import wait_until

from agent import control, files, paths, prepare, process, runs, wire
from agent.attempt import Attempt
from agent.errors import RunError
from agent.launch import Command


class Host(Lab):
    """Launches through `control`, as the daemon does."""

    def launch(self, run: str, *words: str, nproc: int = 2, grace: float = 20.0) -> Attempt:
        spec = dataclasses.replace(self.spec(run, *words, nproc=nproc, grace=grace), python=self.python)
        started = launch(self.home, spec, "ann@laptop")
        assert started.run == run
        return self.watch(run)

    def watch(self, run: str) -> Attempt:
        attempt = runs.current(self.home, run)
        self.attempts.append(attempt)
        return attempt


@pytest.fixture
def host(home: str, tmp_path: Path, fake_torch: Path) -> Iterator[Host]:
    laboratory = Host(home, tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture
def any_host(python: str, home: str, tmp_path: Path, fake_torch: Path) -> Iterator[Host]:
    laboratory = Host(home, tmp_path, python)
    yield laboratory
    laboratory.close()


def run_of(host: Host, run: str) -> wire.Run:
    found = runs.describe(host.home, run)
    assert found is not None
    told = wire.decode(wire.encode(found))
    assert told == found
    return found


# --- launching ---------------------------------------------------------------------------------------------


def test_a_run_is_launched_under_any_python_and_read_back(any_host: Host) -> None:
    before = time.time()
    attempt = any_host.launch("gpt-1", "say=hello", "wait")
    wait_until(lambda: attempt.condition().state == "running")
    run = run_of(any_host, "gpt-1")
    assert (run.run, run.name, run.profile, run.strategy) == ("gpt-1", "a run", "test", "ddp")
    assert (run.attempt, run.state, run.reason, run.ended, run.exit_code) == (1, "running", "", None, None)
    assert (run.world_size, run.nproc_per_node, run.python) == (2, 2, any_host.python)
    assert before <= run.created <= run.started <= time.time()
    assert run.cwd == str(any_host.folder)
    assert run.command[:3] == (any_host.python, "-m", "torch.distributed.run")
    assert run.command[-2:] == ("say=hello", "wait")
    (any_host.folder / "go").touch()
    ended(attempt)
    run = run_of(any_host, "gpt-1")
    assert (run.state, run.exit_code) == ("finished", 0)
    assert run.ended is not None
    assert run.ended >= run.started
    assert attempt.streams() == {"launcher": 0, "rank0": 6, "rank1": 6}
    assert events(attempt) == [("launched", "ann@laptop"), ("finished", "supervisor")]


def test_a_plan_is_what_a_launch_then_starts_and_writes_nothing(host: Host) -> None:
    spec = dataclasses.replace(host.spec("gpt-1", "say=x"), python=host.python)
    planned = plan(host.home, spec)
    assert not Path(paths.runs_dir(host.home)).exists()
    started = launch(host.home, spec, "ann")
    host.watch("gpt-1")
    ports = [word for word in (*planned.argv, *started.argv) if word.startswith("127.0.0.1:")]
    assert len(ports) == 2
    same = [started.argv[planned.argv.index(word)] if word in ports else word for word in planned.argv]
    assert planned._replace(argv=tuple(same), port=started.port) == started


def test_what_ranks_are_given_is_what_was_said(host: Host) -> None:
    attempt = host.launch("gpt-1", "forever")
    wait_until(lambda: attempt.condition().state == "running")
    for pid, _ in attempt.ranks().values():
        environment = process.environ(pid)
        for name, value in attempt.resolved()["env"].items():
            assert f"{name}={value}".encode() in environment


def test_a_run_is_launched_once(host: Host) -> None:
    host.launch("gpt-1", "say=x")
    for action in (
        lambda spec: launch(host.home, spec, "ben"),
        lambda spec: plan(host.home, spec),
    ):
        with pytest.raises(RunError) as refusal:
            action(host.spec("gpt-1"))
        assert refusal.value.code == "exists"


def test_what_cannot_be_launched_leaves_nothing_behind(host: Host) -> None:
    spec = dataclasses.replace(host.spec("gpt-1"), target="/nowhere/train.py", python=host.python)
    with pytest.raises(RunError) as refusal:
        launch(host.home, spec, "ann")
    assert refusal.value.code == "no-script"
    assert runs.describe(host.home, "gpt-1") is None


def test_a_full_disk_is_said_and_leaves_nothing_behind(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, data: bytes, mode: int = 0o600) -> None:
        raise OSError(28, "No space left on device", path)

    spec = dataclasses.replace(host.spec("gpt-1"), python=host.python)
    plan(host.home, spec)  # the interpreter is known from here on
    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(RunError) as refusal:
        launch(host.home, spec, "ann")
    assert refusal.value.code == "no-space"
    assert not Path(paths.run_dir(host.home, "gpt-1")).exists()


def test_a_supervisor_that_does_not_start_is_an_error_and_a_failed_run(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        control.instance, "agent_command", lambda *_: [host.python, "-c", "raise SystemExit('no such agent')"]
    )
    with pytest.raises(RunError) as refusal:
        host.launch("gpt-1", "say=x")
    assert refusal.value.code == "not-started"
    assert "no such agent" in refusal.value.message
    run = run_of(host, "gpt-1")
    assert (run.state, run.reason) == ("failed", refusal.value.message)


def test_the_supervisor_is_nobody_s_child(host: Host) -> None:
    attempt = host.launch("gpt-1", "forever")
    supervisor = attempt.supervisor()
    assert supervisor is not None
    found = process.stat(supervisor[0])
    assert found is not None
    assert found.parent != os.getpid()
    assert os.getsid(supervisor[0]) == supervisor[0]


# --- restarting and stopping -------------------------------------------------------------------------------


def test_a_restart_is_the_next_attempt_with_the_same_spec(host: Host) -> None:
    first = host.launch("gpt-1", "say=x", nproc=1)
    ended(first)
    started = restart(host.home, "gpt-1", "ben")
    second = host.watch("gpt-1")
    assert (started.attempt, second.number, started.nproc_per_node) == (2, 2, 1)
    ended(second)
    assert log(first, "rank0") == log(second, "rank0") == "x\n"
    assert run_of(host, "gpt-1").attempt == 2
    assert runs.numbers(host.home, "gpt-1") == [1, 2]
    assert events(second) == [("restarted", "ben"), ("finished", "supervisor")]
    assert started.env["ENCAMP_ATTEMPT"] == "2"
    assert f"gpt-1-{2}" in started.argv


def test_a_living_attempt_is_not_restarted(host: Host) -> None:
    host.launch("gpt-1", "forever")
    with pytest.raises(RunError) as refusal:
        restart(host.home, "gpt-1", "ben")
    assert refusal.value.code == "busy"


@pytest.mark.parametrize("run", ["other", "../x", "", "A", "x" * 200])
def test_runs_that_do_not_exist_are_said_so(host: Host, run: str) -> None:
    for action in (restart, control.stop):
        with pytest.raises(RunError) as refusal:
            action(host.home, run, "ann")
        assert refusal.value.code == "no-run"
    assert runs.describe(host.home, run) is None


def test_a_stop_goes_through_its_states_to_the_end(host: Host) -> None:
    attempt = host.launch("gpt-1", "gentle", "say=ready", "forever")
    wait_until(lambda: log(attempt, "rank0") == log(attempt, "rank1") == "ready\n")
    control.stop(host.home, "gpt-1", "ann@laptop", 30.0)
    condition = ended(attempt)
    assert (condition.state, condition.reason) == ("stopped", "stopped by ann@laptop")
    assert attempt.reaped() == []


def test_the_later_of_two_stops_counts_only_when_it_is_sooner(host: Host) -> None:
    attempt = host.launch("gpt-1", "deaf", "say=ready", "forever")
    wait_until(lambda: log(attempt, "rank0") == log(attempt, "rank1") == "ready\n")
    control.stop(host.home, "gpt-1", "ann", 60.0)
    control.stop(host.home, "gpt-1", "ben", 600.0)
    stop = files.read_json(f"{attempt.dir}/stop.json")
    assert stop is not None
    assert (stop["actor"], stop["grace_seconds"]) == ("ann", 60.0)
    assert attempt.condition().state == "stopping"
    control.stop(host.home, "gpt-1", "cid", 0.0)
    assert ended(attempt).reason.startswith("stopped by cid")


# --- states ------------------------------------------------------------------------------------------------


def test_a_run_is_starting_until_every_rank_has_said_who_it_is(lab: Lab) -> None:
    slow = lab.folder / "slow.py"
    slow.write_text("import time\ntime.sleep(600)\n")
    attempt = lab.create("forever", launcher=str(slow))
    assert attempt.condition().state == "starting"
    assert not attempt.condition().unwatched, "its supervisor has not had the time"
    lab.supervise(attempt)
    assert attempt.condition().state == "starting"
    launcher = files.read_json(f"{attempt.dir}/launcher.json")
    for rank in range(2):
        assert attempt.condition().state == "starting"
        Path(attempt.dir, f"rank{rank}").mkdir()
        files.write_json(f"{attempt.dir}/rank{rank}/rank.json", launcher)
    assert attempt.condition().state == "running"


def test_processes_that_disappeared_make_a_failed_run(lab: Lab) -> None:
    attempt = lab.running("forever")
    supervisor = attempt.supervisor()
    assert supervisor is not None
    members = process.descendants({supervisor[0]})
    os.kill(supervisor[0], signal.SIGKILL)
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    condition = ended(attempt)
    assert condition.state == "failed"
    assert condition.reason.startswith("its processes disappeared")
    assert condition.ended is not None
    assert abs(time.time() - condition.ended) < 60


def test_a_reboot_is_named(lab: Lab) -> None:
    attempt = lab.create("say=x")
    me = {"pid": os.getpid(), "start_time": process.start_time(os.getpid())}
    values = {**me, "boot_id": "another", "started": 1000.0}
    files.write_json(f"{attempt.dir}/supervisor.json", values)
    condition = attempt.condition()
    assert (condition.state, condition.started) == ("failed", 1000.0)
    assert condition.reason.startswith("the host was rebooted at 20")


def test_an_attempt_that_was_never_started_has_failed_after_a_while(lab: Lab) -> None:
    attempt = lab.create("say=x")
    assert attempt.condition().state == "starting"
    long_ago = time.time() - 3600
    os.utime(f"{attempt.dir}/spec.json", (long_ago, long_ago))
    condition = attempt.condition()
    assert (condition.state, condition.over) == ("failed", True)
    assert condition.reason.startswith("it was never started")


def test_a_lost_run_that_was_being_stopped_is_stopped(lab: Lab) -> None:
    attempt = lab.create("say=x")
    files.write_json(f"{attempt.dir}/stop.json", {"time": 1.0, "actor": "ann", "grace_seconds": 1.0})
    files.write_json(
        f"{attempt.dir}/supervisor.json", {"pid": 2**22 + 1, "start_time": 1, "boot_id": process.boot_id()}
    )
    assert attempt.condition().state == "stopped"


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"resolved": 5}', '{"run": 5}'])
def test_a_spec_that_cannot_be_read_is_no_run(lab: Lab, text: str) -> None:
    attempt = lab.create("say=x")
    Path(attempt.dir, "spec.json").write_text(text)
    fresh = Attempt(lab.home, attempt.run, 1)
    assert runs.describe(lab.home, attempt.run) is None
    assert (fresh.nproc(), fresh.ranks(), fresh.resolved()) == (0, {}, {})
    assert runs.Registry(lab.home).runs() == []


def test_an_end_with_odd_values_is_still_an_end(lab: Lab) -> None:
    attempt = lab.create("say=x")
    Path(attempt.dir, "exit.json").write_text(
        '{"code": "zero", "time": [], "reason": null, "reaped": "none"}'
    )
    condition = attempt.condition()
    assert (condition.state, condition.reason, condition.exit_code) == ("failed", "", None)
    assert condition.ended is not None
    assert attempt.reaped() == []


# --- the registry ------------------------------------------------------------------------------------------


def ended_attempt(lab: Lab, started: float) -> Attempt:
    attempt = lab.create("say=x")
    me = {"pid": 2**22 + 1, "start_time": 1, "boot_id": "another", "started": started}
    files.write_json(f"{attempt.dir}/supervisor.json", me)
    files.write_json(f"{attempt.dir}/exit.json", {"code": 0, "time": started + 1, "reason": "", "reaped": []})
    return attempt


def test_the_registry_lists_runs_newest_first_and_sees_every_change(lab: Lab) -> None:
    registry = runs.Registry(lab.home)
    assert registry.runs() == []
    old, new = ended_attempt(lab, 1000.0), ended_attempt(lab, 2000.0)
    assert [run.run for run in registry.runs()] == [new.run, old.run]
    assert registry.live() == []
    living = lab.running("wait")
    assert [run.state for run in registry.runs()] == ["running", "finished", "finished"]
    assert [attempt.run for attempt in registry.live()] == [living.run]
    (lab.folder / "go").touch()
    ended(living)
    assert registry.runs()[0].state == "finished"
    spec = old.launch_spec()
    assert spec is not None
    command = Command(("x",), {}, "/", "x", 1, 1, 1, "torchrun")
    prepare.create(lab.home, spec, 2, command)
    assert {run.run: run.attempt for run in registry.runs()}[old.run] == 2


def test_ended_runs_cost_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        ended_attempt(lab, float(number))
    long_ago = time.time() - 60
    os.utime(paths.runs_dir(lab.home), (long_ago, long_ago))
    registry = runs.Registry(lab.home)
    before = registry.runs()
    opened: list[str] = []

    def count(path: str) -> None:
        opened.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_json", count)
        patch.setattr(os, "listdir", count)
        assert registry.runs() == before
    assert opened == []


def test_a_removed_run_is_forgotten(lab: Lab) -> None:
    attempt = ended_attempt(lab, 5.0)
    registry = runs.Registry(lab.home)
    assert len(registry.runs()) == 1
    Path(paths.run_dir(lab.home, attempt.run)).rename(lab.folder / "elsewhere")
    assert registry.runs() == []
    assert registry.attempt(attempt.run) is None
