"""Logs over the wire, with the real daemon: following, floods, slow viewers, search."""

from __future__ import annotations

import subprocess
import time

import pytest
from agent_client import AgentHost, Refused

from agent import process, wire

LINE = b"%08d a line of the usual length, with a loss of 1.2345 and a rate of 6789 tokens/s\n"


def test_a_growing_log_reaches_two_viewers_byte_by_byte(host: AgentHost) -> None:
    first, second = host.connect(), host.connect()
    host.launch(first, "run-a", "say=hello", "forever")
    path = host.attempt_dir("run-a") / "rank0.log"
    first.until_log("run-a", "rank0", 6)
    stream = {"run": "run-a", "attempt": 1, "stream": "rank0"}
    assert first.request("log_follow", **stream, offset=0) == {"size": 6, "ended": False}
    assert second.request("log_follow", **stream, offset=3)["size"] == 6
    expected = b"hello\n"
    for piece in (b"a", b"\r 10%\r 20%", b"\n", b"\x1b[31m\0\xff", b"x" * 300_000, b"\nlast\n"):
        with path.open("ab") as file:
            file.write(piece)
        expected += piece
    assert first.read_log(len(expected)) == expected
    assert second.read_log(len(expected)) == expected[3:]
    assert first.request("log_unfollow", **stream) == {}
    with path.open("ab") as file:
        file.write(b"unseen")
    second.expect(wire.Log, lambda log: wire.payload(log.data) == b"unseen")
    first.request("ping")
    assert not [log for log in first.seen if isinstance(log, wire.Log) and log.offset >= len(expected)]


def test_a_log_that_does_not_exist_yet_can_be_followed(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    path = one_host.attempt_dir("run-a") / "launcher.log"
    path.unlink()
    assert viewer.request("log_follow", run="run-a", attempt=1, stream="launcher", offset=0)["size"] == 0
    path.write_text("at last\n")
    assert viewer.read_log(8) == b"at last\n"
    for stream in ("rank2", "rank99999", "../rank0", "rank00", ""):
        with pytest.raises(Refused) as refusal:
            viewer.request("log_read", run="run-a", attempt=1, stream=stream, offset=0, length=1)
        assert refusal.value.code == "no-stream"
    for run, attempt in (("run-b", 1), ("run-a", 2), ("../run-a", 1), ("run-a", -1)):
        with pytest.raises(Refused) as refusal:
            viewer.request("log_read", run=run, attempt=attempt, stream="rank0", offset=0, length=1)
        assert refusal.value.code == "no-run"


def test_a_search_over_the_wire(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    one_host.launch(viewer, "run-a", "forever")
    path = one_host.attempt_dir("run-a") / "rank0.log"
    with path.open("ab") as file:
        file.write(b"." * 1_000_000 + b"\nsome Needle here\n" + b"." * 1_000_000)
    find = {"run": "run-a", "attempt": 1, "stream": "rank0", "text": "needle"}
    hit = viewer.request("log_search", **find, offset=0, backward=False, ignore_case=True)
    assert (hit["offset"], hit["line_offset"]) == (1_000_006, 1_000_001)
    back = viewer.request("log_search", **find, offset=2_000_000, backward=True, ignore_case=True)
    assert back["offset"] == hit["offset"]
    miss = viewer.request("log_search", **find, offset=0, backward=False, ignore_case=False)
    assert (miss["offset"], miss["more"]) == (None, False)
    with pytest.raises(Refused) as refusal:
        viewer.request("log_search", **{**find, "text": ""}, offset=0)
    assert refusal.value.code == "bad-request"


@pytest.mark.slow
def test_a_rank_that_floods_its_log_is_followed_without_loss(host: AgentHost) -> None:
    """100,000 lines a second, or as many as this machine writes beside the rest, for two seconds."""
    viewer = host.connect()
    host.launch(viewer, "run-a", "forever")
    path = host.attempt_dir("run-a") / "rank0.log"
    viewer.request("log_follow", run="run-a", attempt=1, stream="rank0", offset=0)
    code = (
        "import sys, time\n"
        f"line = {LINE!r}\n"
        "start, number, end = time.monotonic(), 0, 200_000\n"
        "with open(sys.argv[1], 'ab', 0) as file:\n"
        "    while number < end:\n"
        "        due = min(end, int((time.monotonic() - start) * 100_000) + 1)\n"
        "        while number < due:\n"
        "            file.write(line % number); number += 1\n"
    )
    writer = subprocess.Popen([host.python, "-c", code, str(path)])
    try:
        total = 200_000 * len(
            b"%08d a line of the usual length, with a loss of 1.2345 and a rate of 6789 tokens/s\n" % 0
        )
        received = viewer.read_log(total, timeout=60)
    finally:
        writer.kill()
        writer.wait()
    assert received == path.read_bytes()
    assert not [message for message in viewer.seen if isinstance(message, wire.Gap)]
    assert [message for message in viewer.seen if isinstance(message, wire.Sample)], "telemetry went on"


def test_a_viewer_that_does_not_read_gets_a_gap_and_harms_nobody(host: AgentHost) -> None:
    quick, slow = host.connect(), host.connect()
    host.launch(quick, "run-a", "forever")
    path = host.attempt_dir("run-a") / "rank0.log"
    size = 60 * 1024 * 1024
    slow.request("log_follow", run="run-a", attempt=1, stream="rank0", offset=0)
    before = process.stat(quick.hello.pid)
    block = bytes(range(256)) * 4096
    for _ in range(size // len(block)):
        with path.open("ab") as file:
            file.write(block)
    for _ in range(3):
        assert time.time() - quick.expect(wire.Sample, timeout=5).time < 3
    after = process.stat(quick.hello.pid)
    assert before is not None
    assert after is not None
    assert after.rss_bytes - before.rss_bytes < 8 * 1024 * 1024, "nothing is kept for the slow one"
    position = 0
    gaps = []
    while position < size:
        message = slow.message()
        if isinstance(message, wire.Log):
            assert message.offset == position
            position += len(wire.payload(message.data))
        elif isinstance(message, wire.Gap):
            assert message.start == position
            gaps.append(message)
            position = message.end
    assert 1 <= len(gaps) <= 5, "and of all that it missed it hears in a few words"
    samples = [message for message in slow.seen if isinstance(message, wire.Sample)]
    assert time.time() - samples[-1].time < 5, "its telemetry is of now"
    start, end = gaps[0].start, gaps[0].start + 300_000
    fetched = b""
    while len(fetched) < end - start:
        part = slow.request(
            "log_read", run="run-a", attempt=1, stream="rank0", offset=start + len(fetched), length=10**6
        )
        fetched += wire.payload(part["data"])
    assert fetched[: end - start] == (block * 2)[start % len(block) :][: end - start]
