"""Runs over the wire, with the real daemon: launch, stop, restart, code, progress, and two people at once."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from agent_client import AgentHost, Refused, gone, start_time

from agent import process, wire


def test_a_run_from_its_launch_to_its_end(host: AgentHost) -> None:
    viewer = host.connect()
    number = viewer.ask(
        "launch", spec=host.spec("run-a", "say=hello", "wait", "1:say=bye"), actor="ann@laptop"
    )
    told = viewer.expect(wire.Run)
    result = viewer.answer(number)
    assert told.run == "run-a", "the run is told before the answer"
    assert (result["run"], result["attempt"], result["world_size"]) == ("run-a", 1, 2)
    assert result["python"] == host.python
    assert result["argv"][1:3] == ["-m", "torch.distributed.run"]
    assert result["env"]["ENCAMP_RUN"] == "run-a"
    running = viewer.until_run("run-a", "running")
    assert running.world_size == running.nproc_per_node == 2
    ranks = viewer.expect(wire.Ranks, lambda ranks: all(rank.log_bytes for rank in ranks.ranks))
    assert [(rank.rank, rank.state) for rank in ranks.ranks] == [(0, "running"), (1, "running")]
    assert all(rank.rss_bytes and process.alive(rank.pid or 0, start_time(rank.pid)) for rank in ranks.ranks)

    second = host.connect()
    assert [run.state for run in second.seen if isinstance(run, wire.Run)] == ["running"]
    assert [ranks.run for ranks in second.seen if isinstance(ranks, wire.Ranks)] == ["run-a"]

    Path(host.home).parent.joinpath("go").touch()
    for eyes in (viewer, second):
        finished = eyes.until_run("run-a", "finished")
        assert finished.exit_code == 0
        last = eyes.expect(wire.Ranks, lambda ranks: ranks.ranks[0].state != "running")
        assert [(rank.state, rank.exit_code) for rank in last.ranks] == [("exited", 0), ("exited", 0)]
        end = len(eyes.seen)
        eyes.expect(wire.Sample)
        eyes.expect(wire.Sample)
        assert not [message for message in eyes.seen[end:] if isinstance(message, wire.Ranks)], "once"
    assert viewer.until_event("finished").actor == "supervisor"
    assert [event.name for event in viewer.seen if isinstance(event, wire.Event)] == ["launched", "finished"]

    assert viewer.request("events", run="run-a")["events"][0]["actor"] == "ann@laptop"
    attempts = viewer.request("run", run="run-a")["attempts"]
    assert [(entry["attempt"], entry["state"], entry["exit_code"]) for entry in attempts] == [
        (1, "finished", 0)
    ]
    assert attempts[0]["streams"] == {"launcher": 0, "rank0": 6, "rank1": 10}
    part = viewer.request("log_read", run="run-a", attempt=1, stream="rank1", offset=-4, length=100)
    assert wire.payload(part["data"]) == b"bye\n"
    assert (part["offset"], part["size"], part["ended"]) == (6, 10, True)


def test_a_dry_run_says_what_a_launch_would_do_and_does_nothing(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    spec = one_host.spec("run-a")
    plan = viewer.request("launch", spec=spec, actor="ann", dry_run=True)
    assert plan["argv"][0] == one_host.python
    assert not Path(one_host.home, "runs").exists()
    started = viewer.request("launch", spec=spec, actor="ann")
    same = {key: value for key, value in plan.items() if key not in ("argv", "env", "port")}
    assert same == {key: started[key] for key in same}
    assert set(plan["env"]) == set(started["env"])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run": "../x"}, "bad-spec"),
        ({"strategy": "magic"}, "bad-spec"),
        ({"cwd": "/no/where"}, "no-cwd"),
        ({"target": "missing.py"}, "no-script"),
        ({"python": "/no/python"}, "no-python"),
        ({"code": [{"sha256": "0" * 64, "name": "trainer"}]}, "no-code"),
        ({"args": "one"}, "bad-request"),
        ({"nproc_per_node": "two"}, "bad-request"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_a_code(
    one_host: AgentHost, changes: dict[str, object], code: str
) -> None:
    viewer = one_host.connect()
    with pytest.raises(Refused) as refusal:
        viewer.request("launch", spec={**one_host.spec("run-a"), **changes}, actor="ann")
    assert refusal.value.code == code
    assert not Path(one_host.home, "runs", "run-a").exists()


def test_a_name_is_given_once(one_host: AgentHost) -> None:
    first, second = one_host.connect(), one_host.connect()
    spec = one_host.spec("run-a", "forever")
    numbers = [eyes.ask("launch", spec=spec, actor="ann") for eyes in (first, second)]
    outcomes = []
    for eyes, number in zip((first, second), numbers, strict=True):
        try:
            outcomes.append(eyes.answer(number)["attempt"])
        except Refused as refusal:
            outcomes.append(refusal.code)
    assert sorted(map(str, outcomes)) == ["1", "exists"]


def test_viewers_are_told_that_a_run_was_removed(host: AgentHost) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "say=x")
    viewer.until_run("run-a", "finished")
    shutil.rmtree(host.attempt_dir("run-a").parent.parent)
    assert viewer.expect(wire.Removed) == wire.Removed("run-a")
    with pytest.raises(Refused, match="no run"):
        viewer.request("stop", run="run-a", actor="ann")


def test_a_stop_answers_when_all_is_gone(host: AgentHost) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "orphan", "say=up", "forever")
    viewer.until_log("run-a", "rank0", 3)
    viewer.until_log("run-a", "rank1", 3)
    result = viewer.request("stop", run="run-a", actor="bob@desk")
    assert result["state"] == "stopped"
    assert len(result["reaped"]) == 2, "the orphans"
    assert all(gone(pid) for pid in result["reaped"])
    ended = viewer.until_run("run-a", "stopped")
    assert ended.reason.startswith("stopped by bob@desk")
    assert viewer.request("stop", run="run-a", actor="bob")["state"] == "stopped", (
        "stopping again is no error"
    )


def test_another_stop_can_shorten_the_grace(one_host: AgentHost) -> None:
    viewer, other = one_host.connect(), one_host.connect()
    one_host.launch(viewer, "run-a", "deaf", "say=up", "forever", grace=600.0)
    viewer.until_log("run-a", "rank1", 3)
    viewer.until_log("run-a", "rank0", 3)
    slow = viewer.ask("stop", run="run-a", actor="ann")
    viewer.until_run("run-a", "stopping")
    assert viewer.request("ping", timeout=5), "a stop that waits keeps nobody else waiting"
    assert other.request("stop", run="run-a", actor="bob", grace_seconds=0.1)["state"] == "stopped"
    assert any(
        isinstance(message, wire.Reply) and message.id == slow for message in viewer.seen
    ) or viewer.answer(slow)


def test_a_restart_begins_the_next_attempt(host: AgentHost) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "say=up", "forever", grace=1.0)
    result = viewer.request("restart", run="run-a", actor="ann")
    assert result["attempt"] == 2
    assert viewer.until_run("run-a", "running", attempt=2)
    states = [(entry["attempt"], entry["state"]) for entry in viewer.request("run", run="run-a")["attempts"]]
    assert states == [(1, "stopped"), (2, "running")]
    with pytest.raises(Refused, match="no run 'run-b'"):
        viewer.request("restart", run="run-b", actor="ann")


def test_what_was_meant_for_an_attempt_leaves_the_next_one_alone(one_host: AgentHost) -> None:
    ann, ben = one_host.connect(), one_host.connect()
    one_host.launch(ann, "run-a", "say=up", "forever", grace=1.0)
    assert ann.request("restart", run="run-a", actor="ann", attempt=1)["attempt"] == 2
    for method in ("restart", "stop"):
        with pytest.raises(Refused, match="attempt 2 of run-a was begun meanwhile by ann") as refused:
            ben.request(method, run="run-a", actor="ben", attempt=1)
        assert refused.value.code == "superseded"
    assert ann.until_run("run-a", "running", attempt=2)
    assert ben.request("stop", run="run-a", actor="ben", attempt=2)["state"] == "stopped"


def test_a_stop_calls_off_a_restart(one_host: AgentHost) -> None:
    viewer, other = one_host.connect(), one_host.connect()
    one_host.launch(viewer, "run-a", "deaf", "say=up", "forever", grace=600.0)
    viewer.until_log("run-a", "rank1", 3)
    restart = viewer.ask("restart", run="run-a", actor="ann")
    viewer.until_run("run-a", "stopping")
    with pytest.raises(Refused) as busy:
        other.request("restart", run="run-a", actor="bob")
    assert busy.value.code == "busy"
    assert other.request("stop", run="run-a", actor="bob", grace_seconds=0.1)["state"] == "stopped"
    with pytest.raises(Refused, match="was stopped while"):
        viewer.answer(restart)
    assert len(viewer.request("run", run="run-a")["attempts"]) == 1


def test_a_stop_right_behind_the_launch(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    launch = viewer.ask("launch", spec=one_host.spec("run-a", "forever"), actor="ann")
    stop = viewer.ask("stop", run="run-a", actor="ann", grace_seconds=1)
    assert viewer.answer(launch)["attempt"] == 1
    assert viewer.answer(stop)["state"] == "stopped"


def test_code_arrives_in_pieces_and_is_on_the_path(one_host: AgentHost) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("shipped.py", "print('shipped code')\n")
        archive.writestr("ballast", os.urandom(200_000))
    data = buffer.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    viewer = one_host.connect()
    assert viewer.request("blob_has", sha256=sha256) == {"present": False}
    received = 0
    while received < len(data):
        piece = base64.b64encode(data[received : received + wire.MAX_CHUNK]).decode()
        answer = viewer.request(
            "blob_put", sha256=sha256, name="code", size=len(data), offset=received, data=piece
        )
        assert answer["received"] > received
        received = answer["received"]
    assert answer["present"]
    assert viewer.request("blob_has", sha256=sha256) == {"present": True}
    spec = one_host.spec("run-a")
    spec.update(target_kind="module", target="shipped", args=[], code=[{"sha256": sha256, "name": "code"}])
    viewer.request("launch", spec=spec, actor="ann")
    viewer.until_run("run-a", "finished")
    assert (one_host.attempt_dir("run-a") / "rank1.log").read_text() == "shipped code\n"
    with pytest.raises(Refused) as refusal:
        viewer.request("blob_put", sha256="0" * 64, name="x", size=3, offset=0, data="YWJj")
    assert refusal.value.code == "bad-hash"


def test_progress_is_told_and_can_be_asked_for(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    path = one_host.attempt_dir("run-a") / "rank1" / "progress.jsonl"
    with path.open("a") as file:
        file.write('{"step": 1, "loss": 2.5, "nested": {}}\n{"step": 2, "loss": NaN}\n{"step": 3, "lo')
    told = viewer.expect(wire.Progress)
    assert (told.rank, told.records) == (1, ({"step": 1, "loss": 2.5}, {"step": 2, "loss": "nan"}))
    records = viewer.request("progress", run="run-a", attempt=1, rank=1, limit=1)["records"]
    assert records == [{"step": 2, "loss": "nan"}]
    assert viewer.request("progress", run="run-a", attempt=1, rank=7, limit=5) == {"records": []}


def test_a_history_too_long_for_a_line_keeps_its_newest_part(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    with (one_host.attempt_dir("run-a") / "events.jsonl").open("a") as file:
        for number in range(400):
            event = {"time": number, "name": "note", "actor": "ann", "text": f"{number} " + "ä" * 1000}
            file.write(json.dumps(event) + "\n")
        file.write("not an event\n")
    texts = [event["text"].split()[0] for event in viewer.request("events", run="run-a")["events"]]
    assert len(texts) > 20
    assert texts == [str(number) for number in range(400 - len(texts), 400)]


def test_a_command_too_long_for_a_line(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    words = ("say=" + "ä" * 20_000, "say=" + "b" * 60_000)
    result = viewer.request("launch", spec=one_host.spec("run-a", *words), actor="ann")
    assert result["argv"][-1] == words[1], "the answer has it whole"
    assert len(viewer.until_run("run-a", "finished").command[-1]) < 20_000, "what is told every time is cut"
    assert (one_host.attempt_dir("run-a") / "rank0.log").stat().st_size == 2 * 20_000 + 60_000 + 2


def test_the_probe_lists_what_a_launch_could_use(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    found = viewer.request("probe", timeout=120)
    assert found["cores"] >= 1
    assert any(entry["torch"] == "2.13.0+fake" for entry in found["interpreters"])
    assert found["named"] is None
    found = viewer.request("probe", python=sys.executable, timeout=120)
    assert found["named"]["path"] == sys.executable
    assert viewer.request("probe", python="/nowhere/python", timeout=120)["named"] is None
