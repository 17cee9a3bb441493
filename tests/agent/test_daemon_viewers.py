"""Viewers that send nonsense, too much, or nothing more: the daemon serves all others as before."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from agent_client import AgentHost, Refused
from waiting import wait_until

from agent import process, wire

LINE = b"%08d a line of the usual length, with a loss of 1.2345 and a rate of 6789 tokens/s\n"


def test_lines_that_are_no_requests(host: AgentHost) -> None:
    viewer = host.connect()
    lines = [
        b"\n",
        b"hello\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b'{"kind":"request","id":"x","method":"ping","params":{}}\n',
        b'{"kind":"request","id":1e999,"method":"ping","params":{}}\n',
        b'{"kind":"reply","id":1,"result":{}}\n',
        b'{"kind":"later","id":1}\n',
        b"x" * (3 * wire.MAX_LINE) + b"\n",
        b"y" * (wire.MAX_LINE + 10) + b"\n",
    ]
    for line in lines:
        viewer.send(line)
    assert viewer.request("ping")
    failures = [message for message in viewer.seen if isinstance(message, wire.Failure)]
    assert [failure.id for failure in failures] == [0] * 8
    assert {failure.code for failure in failures} == {"bad-message"}
    assert "Traceback" not in host.log()


def test_requests_that_make_no_sense(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    for method, params, code in [
        ("dance", {}, "unknown-method"),
        ("", {}, "unknown-method"),
        ("__class__", {}, "unknown-method"),
        ("stop", {}, "bad-request"),
        ("stop", {"run": 5, "actor": "a"}, "bad-request"),
        ("stop", {"run": "x" * 200, "actor": "a"}, "no-run"),
        ("run", {"run": "../../etc"}, "no-run"),
        ("events", {"run": "none"}, "no-run"),
        ("progress", {"run": "../..", "attempt": 1, "rank": 0, "limit": 5}, "no-run"),
        ("blob_has", {"sha256": "../../etc/passwd"}, "bad-hash"),
        ("blob_put", {"sha256": "0" * 64, "name": "", "size": 5, "offset": 0, "data": "?"}, "bad-request"),
        ("launch", {"spec": {}, "actor": "a"}, "bad-request"),
    ]:
        with pytest.raises(Refused) as refusal:
            viewer.request(method, **params)
        assert refusal.value.code == code, (method, params)
    assert "Traceback" not in one_host.log()


def test_a_flood_of_requests_waits_for_its_answers_to_be_read(one_host: AgentHost) -> None:
    viewer, other = one_host.connect(), one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    path = one_host.attempt_dir("run-a") / "rank0.log"
    with path.open("ab") as file:
        file.write(b"x" * wire.MAX_CHUNK)
    before = process.stat(viewer.hello.pid)
    flood = b"".join(
        wire.encode(
            wire.Request(
                1000 + number,
                "log_read",
                {"run": "run-a", "attempt": 1, "stream": "rank0", "offset": 0, "length": wire.MAX_CHUNK},
            )
        )
        for number in range(400)
    )
    viewer.send(flood)  # 50 MB of answers, none of which is read yet
    for _ in range(2):
        other.expect(wire.Sample)
    after = process.stat(viewer.hello.pid)
    assert before is not None
    assert after is not None
    assert after.rss_bytes - before.rss_bytes < 10 * 1024 * 1024
    answered = {viewer.expect(wire.Reply).id for _ in range(400)}
    assert answered == set(range(1000, 1400))


def test_a_viewer_that_hangs_up_leaves_nothing_open(one_host: AgentHost) -> None:
    stays = one_host.connect()
    one_host.launch(stays, "run-a", "forever")
    stays.expect(wire.Ranks)
    folder = Path(f"/proc/{stays.hello.pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        leaves = one_host.connect()
        for stream in ("rank0", "rank1", "launcher"):
            leaves.request("log_follow", run="run-a", attempt=1, stream=stream, offset=0)
        leaves.ask("log_search", run="run-a", attempt=1, stream="rank0", text="x", offset=0)
        leaves.send(b'{"half a line')
        leaves.close()
    wait_until(lambda: len(list(folder.iterdir())) == before, 5, "descriptors are closed")
    assert stays.request("ping")
    assert "Traceback" not in one_host.log()


def test_the_log_of_the_agent_is_bounded(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    log = Path(one_host.home, "agent.log")
    with log.open("ab") as file:
        file.write(b"noise\n" * 200_000)
    wait_until(lambda: log.stat().st_size < 1000, 5, "a new log was begun")
    assert log.with_name("agent.log.1").stat().st_size > 1_000_000
    os.kill(viewer.hello.pid, signal.SIGTERM)
    wait_until(lambda: "daemon ends" in log.read_text(), 5, "what comes later is in the new one")
