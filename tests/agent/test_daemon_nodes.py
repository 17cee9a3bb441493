"""Two hosts on one machine, each with a daemon of its own: a run on both, and what goes wrong with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_client import AgentHost, Connection, Refused, gone
from conftest import pythons
from fakes.nvml import FakeNvml, NoCompiler
from waiting import wait_until

from agent import attempt as attempts
from agent import files, ports, process, wire

SECRET = 's3cret-\u00e4"\\-\U0001f511-value'


class Pair:
    """Two hosts and a viewer of each."""

    def __init__(self, hosts: list[AgentHost]) -> None:
        self.hosts = hosts
        self.viewers = [host.connect() for host in hosts]
        self.port = ports.free_port()

    def placement(self, node_rank: int) -> dict[str, Any]:
        nodes = [
            wire.Node(f"host{number}", viewer.hello.host_id, f"127.0.0.{number + 1}", "lo")
            for number, viewer in enumerate(self.viewers)
        ]
        place = wire.Placement(tuple(nodes), node_rank, "127.0.0.1", self.port, "run-a-1-x")
        return wire.to_json(place)

    def ask(self, method: str, number: int, **params: Any) -> dict[str, Any]:
        return self.viewers[number].request(method, **params)

    def both(self, method: str, **params: Any) -> list[dict[str, Any]]:
        """The same request to both at once; their answers."""
        asked = [viewer.ask(method, **params) for viewer in self.viewers]
        return [viewer.answer(number) for viewer, number in zip(self.viewers, asked, strict=True)]

    def prepare(self, number: int, *words: str, attempt: int = 1, **more: Any) -> dict[str, Any]:
        spec = {**self.hosts[number].spec("run-a", *words, grace=1.0), **more.pop("spec", {})}
        place = self.placement(number)
        return self.ask(
            "prepare", number, spec=spec, attempt=attempt, placement=place, actor="ann@laptop", **more
        )


@pytest.fixture(params=(pythons()[0], pythons()[-1]), ids=("oldest", "newest"))
def pair(request: pytest.FixtureRequest, tmp_path: Path, fake_torch: Path) -> Iterator[Pair]:
    hosts = [AgentHost(str(tmp_path / f"host{number}" / "home"), request.param) for number in range(2)]
    yield Pair(hosts)
    for host in hosts:
        host.close()


def test_a_run_on_two_hosts_has_global_ranks(pair: Pair) -> None:
    planned = [
        pair.ask(
            "plan", number, spec=pair.hosts[number].spec("run-a"), attempt=1, placement=pair.placement(number)
        )
        for number in range(2)
    ]
    assert [plan["torch"] for plan in planned] == ["2.13.0+fake"] * 2
    assert [plan["world_size"] for plan in planned] == [4, 4]
    assert not Path(pair.hosts[0].home, "runs").exists()
    assert pair.ask("plan", 0, spec=pair.hosts[0].spec("run-a"), attempt=1)["port"] > 0

    answers = [pair.prepare(number, "say=up", "wait") for number in range(2)]
    assert [answer["argv"][answer["argv"].index("--node-rank") + 1] for answer in answers] == ["0", "1"]
    told = pair.viewers[1].until_run("run-a", "starting")
    assert (told.node_rank, [node.name for node in told.nodes]) == (1, ["host0", "host1"])
    pair.both("start", run="run-a", attempt=1)
    pair.both("start", run="run-a", attempt=1)
    pair.both("confirm", run="run-a", attempt=1)
    for number, viewer in enumerate(pair.viewers):
        viewer.until_run("run-a", "running")
        ranks = viewer.until(wire.Ranks, lambda ranks: all(rank.pid for rank in ranks.ranks))
        assert [(rank.rank, rank.local_rank) for rank in ranks.ranks] == [
            (2 * number, 0),
            (2 * number + 1, 1),
        ]
    size = pair.ask("log_read", 1, run="run-a", attempt=1, stream="rank3", offset=0, length=9)["size"]
    assert size == 3
    with pytest.raises(Refused, match="no log 'rank1'"):
        pair.ask("log_read", 1, run="run-a", attempt=1, stream="rank1", offset=0, length=9)
    found = pair.ask("spec", 1, run="run-a")
    assert (found["attempt"], found["spec"]["run"], found["placement"]["node_rank"]) == (1, "run-a", 1)
    with pytest.raises(Refused, match="runs on 2 hosts"):
        pair.ask("restart", 0, run="run-a", actor="ann")
    for host in pair.hosts:
        Path(host.home).parent.joinpath("go").touch()
    for viewer in pair.viewers:
        viewer.until_run("run-a", "finished")
        end = viewer.expect(wire.Ranks, lambda ranks: ranks.ranks[0].state == "exited")
        assert [rank.exit_code for rank in end.ranks] == [0, 0]


def test_nothing_is_left_when_one_host_cannot(pair: Pair) -> None:
    pair.prepare(0, "forever")
    with pytest.raises(Refused) as refusal:
        pair.prepare(1, "forever", spec={"target": "/missing.py"})
    assert refusal.value.code == "no-script"
    pair.both("abandon", run="run-a", attempt=1, rendezvous_id="run-a-1-x")
    viewer = pair.viewers[0]
    assert viewer.until(wire.Removed, lambda _: True) == wire.Removed("run-a")
    for host in pair.hosts:
        assert not host.attempt_dir("run-a").parent.parent.exists()
    before = len(viewer.seen)
    pair.prepare(0, "forever")
    while not any(isinstance(message, wire.Event) for message in viewer.seen[before:]):
        viewer.message()
    told = [message for message in viewer.seen[before:] if isinstance(message, (wire.Run, wire.Event))]
    assert [type(message) for message in told] == [wire.Run, wire.Event], "the name is free again"


def test_abandoning_a_started_one_stops_it(pair: Pair) -> None:
    pair.prepare(0, "say=up", "forever")
    pair.ask("start", 0, run="run-a", attempt=1)
    pair.viewers[0].until_log("run-a", "rank0", 3)
    pair.ask("abandon", 0, run="run-a", attempt=1)
    told = pair.viewers[0].until_run("run-a", "stopped")
    assert told.reason.startswith("stopped by encamp, as other hosts could not start")


def test_who_abandons_a_started_one_is_named(pair: Pair) -> None:
    pair.prepare(0, "say=up", "forever")
    pair.ask("start", 0, run="run-a", attempt=1)
    pair.viewers[0].until_log("run-a", "rank0", 3)
    pair.ask("abandon", 0, run="run-a", attempt=1, actor="ann, who interrupted its start")
    told = pair.viewers[0].until_run("run-a", "stopped")
    assert told.reason.startswith("stopped by ann, who interrupted its start")


def kill_daemon(host: AgentHost, viewer: Connection) -> None:
    pid = viewer.hello.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), message="the daemon is dead")
    viewer.close()


def test_another_daemon_starts_what_the_one_before_had_prepared(pair: Pair) -> None:
    for number in range(2):
        pair.prepare(number, "say=up", "wait")
    kill_daemon(pair.hosts[1], pair.viewers[1])
    pair.viewers[1] = pair.hosts[1].connect()
    assert pair.viewers[1].until_run("run-a", "starting")
    pair.both("start", run="run-a", attempt=1)
    for viewer in pair.viewers:
        viewer.until_run("run-a", "running")


def test_a_lease_ends_although_the_daemon_was_killed(pair: Pair) -> None:
    """The viewer dies between prepare and start, and so does a daemon."""
    pair.prepare(1, "forever", secrets={"TOKEN": SECRET})
    folder = pair.hosts[1].attempt_dir("run-a")
    kill_daemon(pair.hosts[1], pair.viewers[1])
    path = str(folder / "prepared.json")
    values = files.read_json(path) or {}
    began = float(str(values["monotonic"])) - attempts.PREPARED_SECONDS + 1.5
    files.write_json(path, {**values, "monotonic": began})
    viewer = pair.viewers[1] = pair.hosts[1].connect()
    told = viewer.until_run("run-a", "failed")
    assert told.reason.startswith("it was prepared and never started")
    wait_until(lambda: not (folder / "secrets.json").exists())
    with pytest.raises(Refused) as refusal:
        viewer.request("start", run="run-a", attempt=1)
    assert refusal.value.code == "expired"
    assert not (folder / "supervisor.json").exists()


def test_a_stop_between_prepare_and_start_wins(pair: Pair) -> None:
    pair.prepare(0, "forever")
    assert pair.ask("stop", 0, run="run-a", actor="ben@desk")["state"] == "stopped"
    with pytest.raises(Refused) as refusal:
        pair.ask("start", 0, run="run-a", attempt=1)
    assert refusal.value.code == "expired"
    assert "stopped by ben@desk" in refusal.value.message


def test_two_that_prepare_the_same_run_at_once(pair: Pair) -> None:
    other = pair.hosts[0].connect()
    params = {
        "spec": pair.hosts[0].spec("run-a", "forever"),
        "attempt": 1,
        "placement": pair.placement(0),
        "actor": "ann",
    }
    outcomes = []
    asked = [(viewer, viewer.ask("prepare", **params)) for viewer in (pair.viewers[0], other)]
    for viewer, number in asked:
        try:
            outcomes.append(str(viewer.answer(number)["attempt"]))
        except Refused as refusal:
            outcomes.append(refusal.code)
    assert sorted(outcomes) == ["1", "exists"]


# --- GPUs --------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu_host(tmp_path: Path, fake_torch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHost]:
    try:
        fake = FakeNvml(tmp_path, 4)
    except NoCompiler as error:
        pytest.skip(str(error))
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    host = AgentHost(str(tmp_path / "home"))
    yield host
    host.close()


def test_the_second_of_two_people_is_told_who_holds_the_gpus(gpu_host: AgentHost) -> None:
    ann, ben = gpu_host.connect(), gpu_host.connect()
    spec = gpu_host.spec
    runs = [spec("run-a", "forever", nproc=2), spec("run-b", "forever", nproc=0)]
    asked = [
        (viewer, viewer.ask("launch", spec=run, actor=actor))
        for viewer, run, actor in zip((ann, ben), runs, ("ann@laptop", "ben@desk"), strict=True)
    ]
    refusals = []
    for viewer, number in asked:
        try:
            viewer.answer(number)
        except Refused as refusal:
            refusals.append(refusal)
    assert [refusal.code for refusal in refusals] == ["gpus-held"]
    assert "launched by" in refusals[0].message
    holder = "run-a" if "run-a" in refusals[0].message else "run-b"
    other = "run-b" if holder == "run-a" else "run-a"
    assert not gpu_host.attempt_dir(other).exists()
    ann.request("stop", run=holder, actor="ann", grace_seconds=0.1)

    ann.request("launch", spec=spec("run-c", "forever", nproc=2), actor="ann@laptop")
    beside = {**spec("run-d", "forever", nproc=2), "env": {"CUDA_VISIBLE_DEVICES": "2,3"}}
    ben.request("launch", spec=beside, actor="ben@desk")
    ben.request("stop", run="run-d", actor="ben", grace_seconds=0.1)
    forced = ben.request(
        "launch", spec=spec("run-e", "forever", nproc=1), actor="ben@desk", forced="it is idle"
    )
    assert forced["attempt"] == 1
    assert ben.until_event("forced").text.startswith("it is idle (GPUs of this host are held: GPU 0 by")
    with pytest.raises(Refused, match="GPU 0 by attempt 1 of run-c"):
        ben.request("launch", spec=spec("run-f", "forever", nproc=1), actor="ben", dry_run=True)
    restarted = ann.request("restart", run="run-c", actor="ann@laptop", forced="mine")
    assert restarted["attempt"] == 2


# --- secrets -----------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
import {module}
assert {module}.__file__ == os.path.abspath({module!r} + ".py"), "the program's own"
value = os.environ["TOKEN"]
print(value == {secret!r}, os.environ["OTHER"] == "", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def files_with(folder: str, text: bytes) -> list[Path]:
    return [
        path
        for path in Path(folder).rglob("*")
        if path.is_file() and not path.is_symlink() and text in path.read_bytes()
    ]


@pytest.fixture
def any_host(python: str, tmp_path: Path, fake_torch: Path) -> Iterator[AgentHost]:
    host = AgentHost(str(tmp_path / "home"), python)
    yield host
    host.close()


def test_secrets_reach_the_ranks_and_nothing_else(any_host: AgentHost, tmp_path: Path) -> None:
    (tmp_path / "unlikely.py").write_text("")
    (tmp_path / "train.py").write_text(SCRIPT.format(secret=SECRET, module="unlikely"))
    viewer = any_host.connect()
    needed = {"TOKEN": "env:TOKEN", "OTHER": "file:~/other"}
    spec = {**any_host.spec("run-a"), "target": "train.py", "secret_sources": needed}
    dry = viewer.request("launch", spec=spec, actor="ann", dry_run=True)
    assert dry["secrets"] == ["OTHER", "TOKEN"]
    with pytest.raises(Refused) as refusal:
        viewer.request("launch", spec=spec, actor="ann", secrets={"TOKEN": SECRET})
    assert refusal.value.code == "no-secrets"
    secrets = {"TOKEN": SECRET, "OTHER": ""}
    started = viewer.request("launch", spec=spec, actor="ann", secrets=secrets)
    told = [wire.encode(message) for message in viewer.seen]
    assert "s3cret" not in str(started)
    folder = any_host.attempt_dir("run-a")
    viewer.until_log("run-a", "rank0", 10)
    viewer.until_log("run-a", "rank1", 10)
    assert (folder / "rank0.log").read_text() == "True True\n"
    assert files_with(any_host.home, b"s3cret") == [folder / "secrets.json"]
    assert (folder / "secrets.json").stat().st_mode & 0o777 == 0o600
    for pid in process.pids():
        if f"ENCAMP_HOME={any_host.home}".encode() in process.environ(pid):
            assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert not any(b"s3cret" in entry for entry in process.environ(pid))
    (tmp_path / "go").touch()
    viewer.until_run("run-a", "finished")
    assert files_with(any_host.home, b"s3cret") == []
    assert not any(b"s3cret" in line for line in told)
    with pytest.raises(Refused) as refusal:
        viewer.request("restart", run="run-a", actor="ann")
    assert refusal.value.code == "no-secrets", "and nothing was stopped or begun"
    assert viewer.request("restart", run="run-a", actor="ann", secrets=secrets)["attempt"] == 2


def test_a_daemon_removes_secrets_of_attempts_that_died_unseen(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    folder = one_host.attempt_dir("run-a")
    (folder / "secrets.json").write_text('{"TOKEN":"s3cret"}')
    supervisor = one_host.supervisor("run-a")
    assert supervisor is not None
    kill_daemon(one_host, viewer)
    members = process.descendants({supervisor})
    for pid in (supervisor, *members):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in (supervisor, *members)))
    assert (folder / "secrets.json").exists()
    one_host.connect()
    wait_until(lambda: not (folder / "secrets.json").exists(), message="the secrets are gone")
