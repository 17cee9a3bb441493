"""Attempts between their preparation and their start: leases, claims, secrets, the copy of the project."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import Lab, ended, events, log, order
from waiting import wait_until

from agent import attempt as attempts_module
from agent import claims, control, files, paths, prepare, process, project, runs, secret_file, wire
from agent.attempt import Attempt
from agent.errors import RunError

NODES = (wire.Node("lead", "a" * 32, "127.0.0.1", "lo"), wire.Node("box", "b" * 32, "127.0.0.2", "lo"))
GPUS = tuple(wire.GpuSample(index, f"GPU-{index}", "H100", "ok") for index in range(4))
TREE = wire.Tree("5" * 64, "demo", 3, 100, "3f2c1a9 with changes")


def placement(node_rank: int = 1) -> wire.Placement:
    return wire.Placement(NODES, node_rank, "127.0.0.1", 29511, "run-1-x")


class Host(Lab):
    """Prepares as the daemon does; its GPUs are what a test says."""

    gpus: tuple[wire.GpuSample, ...] = ()

    def wish(self, run: str, *words: str, **more: object) -> prepare.Order:
        changes = {name: more.pop(name) for name in list(more) if name in wire.LaunchSpec.__annotations__}
        spec = dataclasses.replace(self.spec(run, *words), python=self.python, **changes)  # type: ignore[arg-type]
        return order(spec, "ann@laptop", **{"placement": placement(), **more})

    def prepare(self, run: str, *words: str, **more: object) -> Attempt:
        wish = self.wish(run, *words, **more)
        attempt, _ = prepare.prepare(self.home, wish, prepare.Hardware(self.gpus), lease=True)
        self.attempts.append(attempt)
        return attempt

    def refused(self, run: str, *words: str, **more: object) -> RunError:
        with pytest.raises(RunError) as refusal:
            self.prepare(run, *words, **more)
        return refusal.value

    def fresh(self, attempt: Attempt) -> Attempt:
        """As another process finds it."""
        return Attempt(self.home, attempt.run, attempt.number)


@pytest.fixture
def host(home: str, tmp_path: Path, fake_torch: Path) -> Iterator[Host]:
    laboratory = Host(home, tmp_path)
    yield laboratory
    laboratory.close()


def expire(attempt: Attempt) -> None:
    """Let the lease end now."""
    path = f"{attempt.dir}/prepared.json"
    values = files.read_json(path) or {}
    long_ago = time.monotonic() - attempts_module.PREPARED_SECONDS - 1
    files.write_json(path, {**values, "monotonic": long_ago})


# --- leases ------------------------------------------------------------------------------------------------


def test_a_prepared_attempt_runs_when_it_is_started_and_says_on_which_hosts(host: Host) -> None:
    attempt = host.prepare("run-a", "wait")
    assert attempt.condition().state == "starting"
    assert not attempt.condition().unwatched, "nobody adopts it"
    assert attempt.supervisor() is None
    control.start(host.home, "run-a", 1)
    control.start(host.home, "run-a", 1)
    wait_until(lambda: attempt.condition().state == "running")
    assert attempt.expected() == range(2, 4)
    assert sorted(attempt.ranks()) == [2, 3]
    described = runs.describe(host.home, "run-a")
    assert described is not None
    assert (described.nodes, described.node_rank) == (NODES, 1)
    assert (described.world_size, described.nproc_per_node) == (4, 2)
    (host.folder / "go").touch()
    assert ended(attempt).state == "finished"
    assert set(attempt.streams()) == {"launcher", "rank2", "rank3"}
    assert events(attempt) == [("launched", "ann@laptop"), ("finished", "supervisor")]
    control.start(host.home, "run-a", 1)  # also when it is over


def test_one_that_is_not_started_in_time_is_over(host: Host) -> None:
    attempt = host.prepare("run-a", "say=x")
    expire(attempt)
    condition = host.fresh(attempt).condition()
    assert (condition.state, condition.over) == ("failed", True)
    assert condition.reason.startswith("it was prepared and never started: another host was not ready")
    with pytest.raises(RunError) as refusal:
        control.start(host.home, "run-a", 1)
    assert refusal.value.code == "expired"
    assert attempt.supervisor() is None
    second = host.prepare("run-a", "say=x", attempt=2)
    control.start(host.home, "run-a", 2)
    assert ended(second).state == "finished"


def test_a_reboot_ends_a_lease_and_a_clock_that_is_set_does_not(host: Host) -> None:
    attempt = host.prepare("run-a", "say=x")
    long_ago = time.time() - 7200
    os.utime(f"{attempt.dir}/spec.json", (long_ago, long_ago))
    assert host.fresh(attempt).condition().state == "starting"
    values = files.read_json(f"{attempt.dir}/prepared.json") or {}
    files.write_json(f"{attempt.dir}/prepared.json", {**values, "boot_id": "another"})
    assert host.fresh(attempt).condition().over


def test_a_stop_before_the_start_counts(host: Host) -> None:
    attempt = host.prepare("run-a", "say=x", secrets={"TOKEN": "s3cret"})
    control.stop(host.home, "run-a", "ben@desk")
    condition = host.fresh(attempt).condition()
    assert (condition.state, condition.reason) == ("stopped", "stopped by ben@desk before it was started")
    assert not Path(attempt.dir, "secrets.json").exists()
    with pytest.raises(RunError, match="stopped by ben@desk"):
        control.start(host.home, "run-a", 1)


def test_what_does_not_exist_is_neither_started_nor_confirmed(host: Host) -> None:
    for action in (control.start, control.confirm):
        for run in ("run-a", "../x"):
            with pytest.raises(RunError) as refusal:
                action(host.home, run, 1)
            assert refusal.value.code == "no-run"
    host.prepare("run-a", "say=x")
    with pytest.raises(RunError) as refusal:
        control.confirm(host.home, "run-a", 1)
    assert refusal.value.code == "not-started"


def test_a_supervisor_that_does_not_start_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = host.prepare("run-a", "say=x", secrets={"TOKEN": "s3cret"})
    monkeypatch.setattr(control, "SIGN_SECONDS", 0.1)
    monkeypatch.setattr(
        control.instance, "agent_command", lambda *_: [sys.executable, "-c", "raise SystemExit('no agent')"]
    )
    for _ in range(2):
        with pytest.raises(RunError) as refusal:
            control.start(host.home, "run-a", 1)
        assert refusal.value.code == "not-started"
        assert "no agent" in refusal.value.message
    assert not Path(attempt.dir, "secrets.json").exists()


# --- abandoning --------------------------------------------------------------------------------------------


def test_an_abandoned_attempt_was_never_there(host: Host) -> None:
    registry = runs.Registry(host.home)
    host.prepare("run-a", "say=x")
    assert [run.run for run in registry.runs()] == ["run-a"]
    assert not control.abandon(host.home, "run-a", 1)
    assert registry.runs() == []
    assert not any(Path(paths.runs_dir(host.home)).iterdir())
    assert not control.abandon(host.home, "run-a", 1), "again, and nothing is there"
    assert not control.abandon(host.home, "../run-a", 1)


def test_an_abandoned_restart_leaves_the_attempts_before(host: Host) -> None:
    first = host.prepare("run-a", "say=x")
    control.start(host.home, "run-a", 1)
    ended(first)
    host.prepare("run-a", "say=x", attempt=2)
    assert not control.abandon(host.home, "run-a", 2)
    assert runs.numbers(host.home, "run-a") == [1]
    assert log(first, "rank2") == "x\n"


def test_a_started_attempt_is_to_be_stopped(host: Host) -> None:
    attempt = host.prepare("run-a", "say=x")
    control.start(host.home, "run-a", 1)
    assert control.abandon(host.home, "run-a", 1) or attempt.condition().over
    ended(attempt)
    assert not control.abandon(host.home, "run-a", 1)
    assert runs.numbers(host.home, "run-a") == [1]


def test_somebody_else_s_run_of_that_name_is_left_alone(host: Host) -> None:
    host.prepare("run-a", "say=x")
    assert not control.abandon(host.home, "run-a", 1, "another-id")
    assert runs.numbers(host.home, "run-a") == [1]
    assert not control.abandon(host.home, "run-a", 1, "run-1-x")
    assert runs.numbers(host.home, "run-a") == []


def test_what_a_killed_daemon_left_is_swept(host: Host) -> None:
    mine = Path(paths.staged_dir(host.home, "run-a", "new"))
    mine.mkdir(parents=True)
    theirs = mine.with_name(".old-run-a-4194305")
    theirs.mkdir()
    prepare.sweep(host.home)
    assert mine.exists()
    assert not theirs.exists()


# --- claims ------------------------------------------------------------------------------------------------


def test_numbers_are_claimed_once(host: Host) -> None:
    first = host.prepare("run-a", "say=x")
    assert host.refused("run-a").code == "exists"
    assert host.refused("run-a", attempt=2).code == "busy"
    assert host.refused("run-a", attempt=0).code == "bad-spec"
    control.start(host.home, "run-a", 1)
    ended(first)
    host.prepare("run-a", "say=x", attempt=3)
    expire(host.attempts[-1])
    assert host.refused("run-a", attempt=2).code == "superseded"


def test_a_host_that_joins_a_run_later_begins_with_that_attempt(host: Host) -> None:
    attempt = host.prepare("run-a", "say=x", attempt=4)
    assert runs.numbers(host.home, "run-a") == [4]
    control.start(host.home, "run-a", 4)
    assert ended(attempt).state == "finished"


def test_gpus_are_held_from_the_preparation_to_the_end(host: Host) -> None:
    host.gpus = GPUS
    first = host.prepare("run-a", "wait")
    assert first.gpus() == {0, 1}
    error = host.refused("run-b")
    assert error.code == "gpus-held"
    assert "GPU 0, 1 by attempt 1 of run-a, launched by ann@laptop" in error.message
    with pytest.raises(RunError) as refusal:
        prepare.plan(host.home, host.wish("run-b"), prepare.Hardware(GPUS))
    assert refusal.value.code == "gpus-held"
    assert prepare.plan(host.home, host.wish("run-b"), prepare.Hardware(GPUS), True).run == "run-b"
    assert not Path(paths.run_dir(host.home, "run-b")).exists()
    beside = host.prepare("run-c", env={"CUDA_VISIBLE_DEVICES": "3,2"})
    assert beside.gpus() == {2, 3}
    assert host.prepare("run-d", env={"CUDA_VISIBLE_DEVICES": ""}).gpus() == set()
    control.start(host.home, "run-a", 1)
    assert host.refused("run-b").code == "gpus-held"
    expire(beside)
    assert "run-c" not in host.refused("run-b", nproc_per_node=4).message
    (host.folder / "go").touch()
    ended(first)
    host.prepare("run-b")


def test_a_reason_overrides_and_is_kept(host: Host) -> None:
    host.gpus = GPUS
    host.prepare("run-a")
    second = host.prepare("run-b", forced="  the other one is a leftover ")
    assert second.spec()["forced"] == "the other one is a leftover"
    records, _ = files.read_json_lines(f"{second.dir}/events.jsonl")
    assert (records[0]["name"], records[0]["actor"]) == ("forced", "ann@laptop")
    assert str(records[0]["text"]).startswith(
        "the other one is a leftover (GPUs of this host are held: GPU 0"
    )


def test_a_host_without_gpus_holds_none(host: Host) -> None:
    host.prepare("run-a")
    host.prepare("run-b")


def test_looking_for_holders_among_many_ended_runs_is_quick(host: Host) -> None:
    host.gpus = GPUS
    first = host.prepare("run-0")
    files.write_json(f"{first.dir}/exit.json", {"code": 0, "time": 1.0, "reason": "", "reaped": []})
    for number in range(1, 300):
        shutil.copytree(paths.run_dir(host.home, "run-0"), paths.run_dir(host.home, f"run-{number}"))
    before = time.perf_counter()
    assert claims.holders(host.home, "run-x", (0, 1)) == []
    assert time.perf_counter() - before < 0.5


# --- secrets -----------------------------------------------------------------------------------------------


def test_missing_or_impossible_secrets_are_refused_without_their_values(host: Host) -> None:
    needed = {"WANDB_API_KEY": "env:WANDB_API_KEY", "HF_TOKEN": "file:x"}
    error = host.refused("run-a", secret_sources=needed, secrets={"HF_TOKEN": "s3cret"})
    assert (error.code, error.message) == ("no-secrets", "the run needs the secret WANDB_API_KEY")
    for secrets in ({"A=B": "s3cret"}, {"ENCAMP_X": "s3cret"}, {"A": "s3cret\0"}, {"A": "s3cret" * 30_000}):
        error = host.refused("run-a", secrets=secrets)
        assert error.code == "bad-spec"
        assert "s3cret" not in f"{error.message} {error.hint}"
    assert not Path(paths.run_dir(host.home, "run-a")).exists()
    planned = prepare.plan(host.home, host.wish("run-a", secret_sources=needed), prepare.Hardware())
    assert planned.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert "s3cret" not in repr(host.wish("run-a", secrets={"HF_TOKEN": "s3cret"}))


def test_secrets_of_attempts_that_are_over_are_swept(host: Host) -> None:
    over = host.prepare("run-a", secrets={"TOKEN": "x"})
    waits = host.prepare("run-b", secrets={"TOKEN": "x"})
    Path(over.dir, "secrets.json.123.part").write_text("{")
    expire(over)
    secret_file.sweep(host.home)
    assert not list(Path(over.dir).glob("secrets*"))
    kept = Path(waits.dir, "secrets.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


# --- the project -------------------------------------------------------------------------------------------


@pytest.fixture
def tree(home: str) -> Path:
    """A project as it was received: nothing in it can be written."""
    folder = Path(paths.code_dir(home, TREE.sha256))
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("import os; print(os.getcwd()); open('out', 'w').close()\n")
    (folder / "sub" / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "link").symlink_to("../train.py")
    (folder / "train.py").chmod(0o444)
    (folder / "sub" / "tool.sh").chmod(0o555)
    return folder


def test_a_run_works_in_its_own_copy_of_the_project(host: Host, tree: Path) -> None:
    wish = {"project": TREE, "cwd": "", "target": "train.py"}
    planned = prepare.plan(host.home, host.wish("run-a", **wish), prepare.Hardware())
    copy = Path(paths.run_code_dir(host.home, "run-a"))
    assert (planned.cwd, copy.exists()) == (str(copy), False)
    attempt = host.prepare("run-a", **wish)
    control.start(host.home, "run-a", 1)
    assert ended(attempt).state == "finished"
    assert log(attempt, "rank2") == f"{copy}\n"
    assert (copy / "out").exists()
    assert not (tree / "out").exists()
    assert (copy / "sub" / "link").readlink() == Path("../train.py")
    modes = {path: stat.S_IMODE((copy / path).stat().st_mode) for path in ("train.py", "sub/tool.sh", "sub")}
    assert modes == {"train.py": 0o600, "sub/tool.sh": 0o700, "sub": 0o700}
    described = runs.describe(host.home, "run-a")
    assert described is not None
    assert described.code == "demo 5555555555 3f2c1a9 with changes"
    shutil.rmtree(tree)
    again = host.prepare("run-a", attempt=2, **wish)
    control.start(host.home, "run-a", 2)
    assert ended(again).state == "finished", "it goes on with the copy"


def test_a_folder_of_the_project_or_another_can_be_the_working_directory(host: Host, tree: Path) -> None:
    wish = {"project": TREE, "target": "link"}
    copy = paths.run_code_dir(host.home, "run-a")
    for cwd, expected in (("sub", f"{copy}/sub"), ("./sub/../sub", f"{copy}/sub")):
        planned = prepare.plan(host.home, host.wish("run-a", cwd=cwd, **wish), prepare.Hardware())
        assert planned.cwd == expected
    outside = host.wish("run-a", cwd="/tmp", project=TREE, target_kind="module", target="x")
    assert prepare.plan(host.home, outside, prepare.Hardware()).cwd == "/tmp"
    assert host.refused("run-a", cwd="nowhere", **wish).code == "no-cwd"
    assert host.refused("run-a", cwd="", project=TREE, target="gone.py").code == "no-script"


def test_code_that_is_not_here_is_said(host: Host) -> None:
    assert host.refused("run-a", project=TREE, cwd="").code == "no-code"
    bad = dataclasses.replace(TREE, sha256="../..")
    assert host.refused("run-a", project=bad, cwd="").code == "no-code"


def test_a_copy_that_does_not_fit_leaves_nothing(
    host: Host, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project, "_copy_range", full)
    assert host.refused("run-a", project=TREE, cwd="", target="train.py").code == "no-space"
    assert not any(Path(paths.runs_dir(host.home)).iterdir())


@pytest.mark.parametrize("range_copy", [None, "refuses"])
def test_kernels_that_cannot_copy_by_themselves(
    host: Host, tree: Path, monkeypatch: pytest.MonkeyPatch, range_copy: str | None
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(project, "_copy_range", refuse if range_copy else None)
    target = host.folder / "copy"
    project.copy(host.home, TREE, str(target))
    assert (target / "train.py").read_bytes() == (tree / "train.py").read_bytes()


def test_processes_of_the_same_run_number_elsewhere_are_not_ours(host: Host) -> None:
    """Two homes on one machine have runs of the same name: a node sees only its own processes."""
    attempt = host.prepare("run-a", "forever")
    control.start(host.home, "run-a", 1)
    wait_until(lambda: attempt.condition().state == "running")
    marks = {name: attempt.resolved()["env"][name] for name in ("ENCAMP_RUN", "ENCAMP_ATTEMPT_DIR")}
    elsewhere = {**marks, "ENCAMP_ATTEMPT_DIR": "/elsewhere"}
    assert process.marked(marks)
    assert not process.marked(elsewhere)
