"""The evidence of several hosts as one: who may speak for whom, who is away, what is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.diagnosis.evidence import Collective, Evidence, Frame, Group, Rank, Thread
from agent.diagnosis.evidence import Host as HostPart
from tui.cli import diagnose_run, diagnose_text
from tui.fleet import diagnosis, evidence_bundle, tracebacks
from tui.fleet.diagnosis import Report
from tui.fleet.errors import HostError, RequestRefused, Unreachable, UsageError
from tui.fleet.store import Link, Store

NODES = (wire.Node("a", "id-a", "10.0.0.1", "eth0"), wire.Node("b", "id-b", "10.0.0.2", "eth0"))
REDUCE = Frame(
    "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce", False
)
OWN = Frame("/work/train.py", 7, "load", True, "time.sleep(60)")

Answer = dict[str, Any] | Exception | Callable[[dict[str, Any]], dict[str, Any]]


class Host:
    """A session whose agent answers as told."""

    def __init__(self, store: Store, name: str, evidence: Answer, ahead: float = 0.0) -> None:
        self.name = name
        self.store = store
        self.view = store.add_host(name, f"{name}.example")
        self.live = True
        self.evidence = evidence
        self.ahead = ahead
        self.files: dict[str, bytes] = {}
        self.asked: dict[str, Any] = {}
        self.ended = "failed"
        store.set_link(name, Link.LIVE)
        store.apply(
            name, wire.Hello(*wire.PROTOCOL, "1", "b", f"id-{name}", "boot", "h", "u", "/h", "3", 1, 0.0, 0.0)
        )
        self.view.ready = True
        self.tell()

    def tell(self, state: str = "running", reason: str = "", attempt: int = 2) -> None:
        self.store.apply(
            self.name,
            wire.Run(
                "r-1", "r", "p", "ddp", attempt, state, reason, 1.0, 2.0, None, 4, 2, "/py", (), "/",
                nodes=NODES, node_rank=int(self.name == "b"),
            ),
        )  # fmt: skip

    def lose(self) -> None:
        self.live = False
        self.store.set_link(self.name, Link.UNREACHABLE, "no route to host", since=time.time() - 40)

    async def request(self, method: str, params: dict[str, Any], timeout: float = 30) -> dict[str, Any]:
        del timeout
        if method == "ping":
            return {"time": time.time() + self.ahead}
        if method == "evidence":
            self.asked = params
            if isinstance(self.evidence, Exception):
                raise self.evidence
            return self.evidence(params) if callable(self.evidence) else self.evidence
        if method == "file_list":
            return self._list(params["path"])
        if method == "run":
            return {"attempts": [{"attempt": 1, "state": self.ended, "reason": "rank 0 failed"}]}
        if method == "file_read":
            if params["path"] not in self.files:
                raise RequestRefused("no-file", "there is no such file")
            data = self.files[params["path"]][params["offset"] :][: params["length"]]
            return {"data": wire.log_message("r-1", 1, "launcher", 0, data).data}
        raise RequestRefused("unknown-method", f"no {method}")

    def _list(self, folder: str) -> dict[str, Any]:
        entries: dict[str, dict[str, Any]] = {}
        for path, data in self.files.items():
            if path.startswith(folder + "/"):
                name, slash, _ = path[len(folder) + 1 :].partition("/")
                kind = "folder" if slash else "file"
                entries[name] = {"name": name, "kind": kind, "size": 0 if slash else len(data)}
        return {"folder": True, "entries": list(entries.values()), "next": None}


def rank(number: int, enqueued: int = 12, frame: Frame = REDUCE, **more: Any) -> Rank:
    """A rank that is stalled: in a collective, or with one call less in `frame`."""
    recent = (Collective(enqueued, "gloo:all_reduce", "72 float", float(enqueued), enqueued < 12),)
    values: dict[str, Any] = {
        "pid": 100 + number, "process_state": "S", "main_cpu_share": 0.0, "step": 11, "step_age": 9.0,
        "step_seconds": 0.5, "recorded": True, "threads": (Thread("", True, (frame, OWN)),),
        "groups": (Group("0", "default_pg", (), enqueued, 11, recent),), "wait_channel": "hrtimer_nanosleep",
    }  # fmt: skip
    return Rank(number, "", "running", **(values | more))


def over(number: int, at: float, code: int = 1, **more: Any) -> Rank:
    return Rank(number, "", "exited", exit_code=code, ended=at, **more)


def told(*ranks: Rank, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run": "r-1", "attempt": 2, "time": 50.0, "world_size": 4, "window_seconds": 1.0, "ranks": ranks,
        "hosts": (HostPart("what the launching user called it", True),), "allowed_seconds": 3.0,
    }  # fmt: skip
    evidence = Evidence(**(values | more))
    return {"evidence": json.loads(json.dumps(dataclasses.asdict(evidence))), "alarm": None}


def pair(a: Answer, b: Answer, *, b_ahead: float = 0.0) -> tuple[Host, Host]:
    store = Store()
    return Host(store, "a", a), Host(store, "b", b, b_ahead)


def examined(*hosts: Host, attempt: int | None = None) -> Report:
    run = hosts[0].store.find_run("r-1")
    assert run is not None
    return asyncio.run(diagnosis.examine(run, hosts, attempt))  # type: ignore[arg-type]


HANGS = (told(rank(0), rank(1)), told(rank(2), rank(3, 11, OWN)))


def test_the_ranks_of_all_hosts_are_judged_together_under_our_names() -> None:
    report = examined(*pair(*HANGS))
    document = diagnosis.document(report)
    assert (document["verdict"], document["culprits"]) == ("collective-missing", [3])
    assert document["sentence"].startswith("rank 3 on b ")
    assert [(part["rank"], part["host"]) for part in document["ranks"]] == [
        (0, "a"), (1, "a"), (2, "b"), (3, "b")
    ]  # fmt: skip
    assert document["ranks"][3]["collective"] == {"enqueued": 11, "completed": 11, "name": "gloo:all_reduce"}
    assert document["ranks"][3]["stack"][0] == {
        "file": "/work/train.py", "line": 7, "function": "load", "user_code": True
    }  # fmt: skip
    assert set(document) == {
        "run", "attempt", "state", "verdict", "culprits", "confidence", "sentence", "since_seconds",
        "evidence", "ranks",
    }  # fmt: skip
    assert report.notes == () and diagnose_run.exit_code(report) == 1


def test_a_host_speaks_only_for_its_own_ranks() -> None:
    lies = told(rank(2), rank(3), rank(3, 11, OWN), rank(0, 11, OWN), rank(77))
    report = examined(*pair(told(rank(0), rank(1)), lies))
    assert [part.rank for part in report.diagnosis.ranks] == [0, 1, 2, 3]
    assert report.diagnosis.culprits == ()
    assert "b spoke of 3 ranks that are not its own: ignored" in report.notes


def test_what_a_host_says_is_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\u202etrain"
    frame = Frame(f"/work/{evil}.py", 7, f"load{evil}", True, f"sleep{evil}\n\n\n")
    failed = over(2, 9.0, error_type=f"Value{evil}", error_message=f"a{evil}\nb", traceback=f"Tr{evil}\n  b")
    for b in (told(rank(2), rank(3, 11, frame)), told(failed, rank(3))):
        report = examined(*pair(HANGS[0], b))
        diagnose_text.show(report, ("rank2", f"last{evil}"))
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.split("\n"))
        told_json = json.dumps(diagnosis.document(report), ensure_ascii=False)
        assert told_json.isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"evidence": []}, {"evidence": {"run": "r-1"}}, told(run="other"), told(attempt=1),
        {**told(), "alarm": 5}, HostError("garbled"), RequestRefused("unknown-method", "knows no 'evidence'"),
    ],
)  # fmt: skip
def test_a_host_that_answers_nonsense_is_named_and_the_others_judged(answer: Answer) -> None:
    report = examined(*pair(HANGS[0], answer))
    assert [part.rank for part in report.diagnosis.ranks] == [0, 1, 2, 3]
    assert any(note.startswith("b is not in it: ") for note in report.notes)
    assert diagnose_run.exit_code(report) in (1, 3)


def test_a_host_whose_agent_is_older_is_neither_away_nor_to_blame() -> None:
    a, b = pair(HANGS[0], RequestRefused("unknown-method", "knows no 'evidence'"))
    seen = tuple(wire.RankSample(number, number - 2, "running", step=10) for number in (2, 3))
    b.store.apply("b", wire.Ranks("r-1", 2, 3.0, seen))
    found = examined(a, b)
    assert (found.diagnosis.verdict, found.diagnosis.culprits) == ("unknown", ())
    assert found.diagnosis.sentence.endswith("nothing is known of what ranks 2 and 3 are doing")
    assert "b is not in it: its agent is of an older encamp" in found.notes[0]


def test_a_host_that_is_away_is_the_verdict_with_what_it_was_last_seen_doing() -> None:
    a, b = pair(*HANGS)
    b.store.apply(
        "b", wire.Ranks("r-1", 2, 3.0, (wire.RankSample(2, 0, "running", step=10, process_state="S"),))
    )
    b.lose()
    report = examined(a, b)
    assert (report.diagnosis.verdict, report.diagnosis.culprits) == ("host-unreachable", (2, 3))
    assert report.diagnosis.ranks[2].step == 10
    assert "has not answered for 4" in report.diagnosis.evidence[0].text
    assert any("no route to host" in note for note in report.notes)
    assert diagnose_run.exit_code(report) == 3
    a.lose()
    with pytest.raises(HostError):
        examined(a, b)


def test_one_that_does_not_answer_in_time_is_away_too() -> None:
    report = examined(*pair(HANGS[0], Unreachable("b did not answer within 20 s.")))
    assert report.diagnosis.verdict == "host-unreachable"


def test_one_that_drops_while_it_looks_at_its_ranks_is_away_too() -> None:
    a, b = pair(HANGS[0], {})

    def drops(_: dict[str, Any]) -> dict[str, Any]:
        b.lose()
        raise Unreachable("b is not reachable any more.")

    b.evidence = drops
    report = examined(a, b)
    assert (report.diagnosis.verdict, report.diagnosis.culprits) == ("host-unreachable", (2, 3))
    assert "b is not in it: b is not reachable any more." in report.notes


def test_a_host_that_has_ended_and_is_away_does_not_hide_who_failed() -> None:
    ended = over(1, 9.0, error_type="ValueError", error_message="no sample 8")
    a, b = pair(told(over(0, 9.1, -15), ended), {})
    a.tell("failed", "rank 1 failed")
    b.tell("failed", "rank 3 failed")
    b.lose()
    report = examined(a, b)
    assert (report.diagnosis.verdict, report.diagnosis.culprits) == ("exited-early", (1,))


def test_who_failed_first_by_one_clock() -> None:
    now = time.time()
    first = over(3, now - 60 + 3600, error_type="ValueError", error_message="no sample 8")
    second = over(1, now - 50, error_type="KeyError", error_message="'x'")
    a, b = pair(told(over(0, now - 49, -15), second), told(first), b_ahead=3600.0)
    for host in (a, b):
        host.tell("failed", "it failed")
    report = examined(a, b)
    assert [failed.rank for failed in report.failed] == [3, 1, 0]
    assert report.diagnosis.culprits == (3,)
    assert 55 < report.diagnosis.since_seconds < 70
    assert [report.consequence(failed) for failed in report.failed] == [False, False, True]


def test_a_run_that_somebody_stopped_is_well_and_one_that_failed_is_not() -> None:
    killed = told(over(0, 9.0, -15), Rank(1, "", "lost")), told(over(2, 9.0, -9), over(3, 9.0, 0))
    hosts = pair(*killed)
    for host in hosts:
        host.tell("stopped", "stopped by ann")
    report = examined(*hosts)
    assert (report.diagnosis.verdict, report.diagnosis.culprits) == ("healthy", ())
    assert "stopped by ann" in report.diagnosis.sentence and diagnose_run.exit_code(report) == 0
    never = Rank(0, "", "starting"), Rank(2, "", "starting")
    hosts = pair(told(never[0]), told(never[1]))
    for host in hosts:
        host.tell("failed", "torchrun found no port")
    report = examined(*hosts)
    assert report.diagnosis.verdict == "unknown" and "torchrun found no port" in report.diagnosis.sentence


def test_an_older_attempt_is_asked_of_the_hosts_that_it_was_on() -> None:
    failed = over(0, 9.0, error_type="ValueError", error_message="no sample 8")
    a, b = pair(told(attempt=1), told(failed, rank(1), attempt=1))
    with pytest.raises(RequestRefused, match="no attempt 1"):
        examined(a, b, attempt=1)
    placement = {
        "nodes": [dataclasses.asdict(NODES[1])], "node_rank": 0, "rendezvous_address": "10.0.0.2",
        "rendezvous_port": 1, "rendezvous_id": "x",
    }  # fmt: skip
    spec = {"resolved": {"nproc_per_node": 1, "world_size": 1}, "placement": placement}
    b.files["attempts/1/spec.json"] = json.dumps(spec).encode()
    report = examined(a, b, attempt=1)
    assert (a.asked, b.asked) == ({}, {"run": "r-1", "attempt": 1})
    assert (report.attempt, report.state, report.reason) == (1, "failed", "rank 0 failed")
    assert [(part.rank, part.host) for part in report.diagnosis.ranks] == [(0, "b")]
    assert report.diagnosis.culprits == (0,)
    b.files["attempts/1/spec.json"] = b'{"resolved": []}'
    with pytest.raises(HostError, match="makes no sense"):
        examined(a, b, attempt=1)


# --- tracebacks ------------------------------------------------------------------------------------------

TRACEBACK = """Traceback (most recent call last):
  File "/h/runs/r-1/attempts/2/rank.py", line 440, in <module>
    exec(load_script(_target))
  File "/py/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 1, in wrapper
    return f(*args)
           ^^^^^^^^
  File "/work/train.py", line 7, in load
    raise ValueError(step)
  File "/py/lib/python3.11/json/decoder.py", line 9, in decode
    x()
ValueError: no sample 8
"""


def test_tracebacks_are_without_launchers_and_each_only_once(capsys: pytest.CaptureFixture[str]) -> None:
    kept = tracebacks.lines(TRACEBACK)
    assert [(line.text.strip(), line.user_code) for line in kept] == [
        ("Traceback (most recent call last):", None),
        ('File "/work/train.py", line 7, in load', True),
        ("raise ValueError(step)", True),
        ('File "/py/lib/python3.11/json/decoder.py", line 9, in decode', False),
        ("x()", False),
        ("ValueError: no sample 8", None),
    ]
    same = [
        over(number, 9.0 + number, error_type="ValueError", error_message="no sample 8", traceback=TRACEBACK)
        for number in range(3)
    ]
    gone = over(3, 20.0, error_type="RuntimeError", error_message="Connection closed by peer [10.0.0.1]:4")
    hosts = pair(told(*same[:2]), told(same[2], gone))
    for host in hosts:
        host.tell("failed", "it failed")
    report = examined(*hosts)
    diagnose_text.show(report, ("", ""))
    shown = capsys.readouterr().out
    assert shown.count("no sample 8") == 3 and shown.count('"/work/train.py", line 7') == 1
    assert "the same on ranks 1, 2" in shown
    assert (
        "rank 3 on b (a consequence): exit 1, RuntimeError: Connection closed by peer [10.0.0.1]:4" in shown
    )


# --- the bundle ------------------------------------------------------------------------------------------


def test_the_bundle_has_what_is_there_without_secrets_and_names_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path / "state"))
    a, b = pair(*HANGS)
    spec = {
        "env": {"WANDB_API_KEY": "abcdef-123456", "PIN_TOKEN": "1", "TOKENIZERS_PARALLELISM": "false"},
        "args": [
            "--api-key",
            "argument-1",
            "--hf-token=argument-2",
            "db.passwd=argument-3",
            "--tokens",
            "100",
        ],
        "resolved": {
            "env": {"WANDB_API_KEY": "abcdef-123456", "LAYERS": 3},
            "argv": ["x", "--index=http://u:pw@h/"],
        },
    }
    said = [
        *(f"argument-{n}" for n in (1, 2, 3)), "redis://:opensesame@h/", f"https://{'q' * 40}:x-oauth@h/",
        "https://opensesame@h", f"hf_{'q' * 34}", f"Authorization: Bearer {'q' * 20}",
    ]  # fmt: skip
    log = b"SECRET-abcdef-123456 " * 20_000 + b"\nkey abcdef-123456 end\n"
    a.files = {
        "attempts/2/spec.json": json.dumps(spec).encode(),
        "attempts/2/rank0.log": log,
        "attempts/2/stall-1.json": b"{}",
        "attempts/2/launcher.log": "\n".join([*said, "100 tokens, see a@b, http://h:80/x"]).encode(),
        "attempts/2/telemetry.json": b"{}",
        "attempts/2/secrets.json": b"never",
        "attempts/2/rank0/error.json": b"{}",
        "attempts/2/rank0/model.pt": b"never",
        "attempts/2/rank0/../../x": b"never",
    }
    b.lose()
    report = examined(a, b)
    told = dataclasses.replace(report.diagnosis, sentence="KeyError: abcdef-123456")
    report = dataclasses.replace(report, diagnosis=told)
    target = tmp_path / "evidence.tar.gz"
    written = asyncio.run(evidence_bundle.write(report, target))
    assert written.bytes == target.stat().st_size and target.stat().st_mode & 0o777 == 0o600
    assert "the files on b" in written.missing
    with tarfile.open(target) as archive:
        files = {
            member.name.removeprefix("r-1-attempt-2/"): file.read()
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }
    assert set(files) == {
        "README.txt", "diagnosis.json", "a/evidence.json", "a/host.json", "a/stacks/rank0.txt",
        "a/stacks/rank1.txt", "a/spec.json", "a/rank0.log", "a/stall-1.json", "a/rank0/error.json",
        "a/telemetry.json", "a/launcher.log", "b/host.json",
    }  # fmt: skip
    assert files["a/rank0.log"] == b"key (removed) end\n"
    kept = json.loads(files["a/spec.json"])
    assert kept["env"] == {
        "WANDB_API_KEY": "(removed)", "PIN_TOKEN": "(removed)", "TOKENIZERS_PARALLELISM": "false"
    }  # fmt: skip
    assert kept["resolved"]["argv"] == ["x", "--index=http://u:(removed)@h/"]
    assert not re.search(rb"abcdef-123456|argument-\d|opensesame|q{9}", b"".join(files.values()))
    assert files["a/launcher.log"].endswith(b"\n100 tokens, see a@b, http://h:80/x")
    assert b"KeyError: (removed)" in files["README.txt"] and b"the files on b" in files["README.txt"]
    with pytest.raises(UsageError, match="exists already"):
        asyncio.run(evidence_bundle.write(report, target))
    asyncio.run(evidence_bundle.write(report, target, force=True))
    with pytest.raises(UsageError, match="is a folder"):
        evidence_bundle.check_target(tmp_path, force=True)
    with pytest.raises(UsageError, match="no folder"):
        evidence_bundle.check_target(tmp_path / "no" / "x", force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence.tar.gz"]
