"""What a rank shows of itself is read with care: flight records, stacks and sockets of any content."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import wait_until

from agent import wire
from agent.ranks import STEPS, STEPS_MAGIC
from agent.signals import flight, gather, sockets, stacks
from agent.signals.look import Known

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def odd(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have these fields or leave some out, each as it should be or anything else."""
    return st.fixed_dictionaries({}, optional={name: like | JSON for name, like in fields.items()})


ENTRY = odd(
    pg_id=st.integers(0, 3),
    process_group=st.lists(st.text(max_size=6), min_size=2, max_size=2),
    collective_seq_id=st.integers(),
    p2p_seq_id=st.integers() | st.text(max_size=4),
    is_p2p=st.booleans(),
    profiling_name=st.sampled_from(["gloo:all_reduce", "nccl:send 0->1"]),
    time_created_ns=st.integers(),
    input_sizes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=2),
    input_dtypes=st.lists(st.just("Float"), max_size=2),
    retired=st.booleans(),
    state=st.just("scheduled"),
)
STATUS = odd(
    last_enqueued_collective=st.integers() | st.text(max_size=5), last_completed_collective=st.integers()
)
RECORD = odd(
    entries=st.lists(ENTRY, max_size=5),
    pg_status=st.dictionaries(st.sampled_from("0123"), STATUS | JSON, max_size=3),
    pg_config=st.dictionaries(st.text(max_size=4), odd(ranks=st.just("[0, 1]")), max_size=2),
)

REAL = {
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": "6", "last_completed_collective": "5"}},
    "entries": [
        {
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "is_p2p": False,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": number * 10**9,
            "input_sizes": [[10, 20]],
            "input_dtypes": ["Float"],
            "retired": number < 6,
            "state": "scheduled",
        }
        for number in range(1, 7)
    ],
}


def test_a_real_record() -> None:
    (group,) = flight.parse(REAL)
    assert (group.name, group.description, group.ranks) == ("0", "default_pg", (0, 1))
    assert (group.enqueued, group.completed, len(group.recent)) == (6, 5, 6)
    last = group.recent[-1]
    assert (last.sequence, last.name, last.shape, last.retired) == (
        6,
        "gloo:all_reduce",
        "10x20 float",
        False,
    )


def test_numbers_of_other_scripts_and_of_any_size_are_left_out() -> None:
    groups = flight.parse(
        {
            "pg_config": {"0": {"ranks": "[0, 1, \u00b2]"}},
            "pg_status": {"0": {"last_enqueued_collective": 3}},
            "entries": [{"pg_id": "0", "profiling_name": "gloo:all_reduce", "time_created_ns": 10**400}],
        }
    )
    assert [(group.ranks, group.enqueued, group.recent) for group in groups] == [((0, 1), 3, ())]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RECORD)
def test_no_record_is_too_strange(record: dict[str, Any]) -> None:
    for group in flight.parse(record):
        assert group.enqueued >= 0 and group.completed >= 0
        assert len(group.name) <= flight.MAX_NAME and len(group.recent) <= flight.RECENT
        json.dumps([entry.shape for entry in group.recent])


class Answers:
    """A server on the socket of a rank that says to everybody the same, and then hangs up or does not."""

    def __init__(self, folder: Path, answer: bytes, *, hang_up: bool = True) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / flight.SOCKET))
        self._server.listen()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, args=(answer, hang_up), daemon=True)
        self._thread.start()

    def _serve(self, answer: bytes, hang_up: bool) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            try:
                connection.recv(4096)
                connection.sendall(answer)
            except OSError:
                pass  # it has heard enough
            if hang_up:
                connection.close()
            else:
                self._held.append(connection)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)
        for connection in self._held:
            connection.close()


def ok(body: bytes, length: bool = True) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n" if length else "HTTP/1.1 200 OK\r\n\r\n"
    return head.encode() + body


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Any]:
    made: list[Answers] = []

    def make(answer: bytes, **options: bool) -> str:
        made.append(Answers(tmp_path, answer, **options))
        return str(tmp_path)

    yield make
    for one in made:
        one.close()


def test_a_record_over_the_socket(answers: Any) -> None:
    folder = answers(ok(json.dumps(REAL).encode()), hang_up=False)
    groups = flight.record(folder)
    assert groups is not None and groups[0].enqueued == 6


def test_the_path_of_the_socket_may_be_longer_than_a_socket_s(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    there = os.open(folder, os.O_RDONLY)
    with contextlib.closing(Answers(Path(f"/proc/self/fd/{there}"), ok(json.dumps(REAL).encode()))):
        assert flight.record(str(folder)) is not None
    os.close(there)


def test_a_record_of_50_megabytes_is_none(answers: Any) -> None:
    started = time.monotonic()
    assert flight.record(answers(ok(b'{"entries": "' + b"x" * 50_000_000 + b'"}'))) is None
    assert time.monotonic() - started < flight.ANSWER_SECONDS + 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\xff" * 100,
        ok(b"[1, 2]"),
        ok(b"[" * 100_000),
        ok(b"\xff\xfe{}"),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
    ],
    ids=["nothing", "binary", "a list", "a deep one", "no text", "not found", "a length that is none"],
)
def test_an_answer_that_is_no_record(answers: Any, answer: bytes) -> None:
    assert flight.record(answers(answer)) is None


def test_a_server_that_never_answers_costs_two_seconds(answers: Any) -> None:
    started = time.monotonic()
    assert flight.record(answers(b"", hang_up=False)) is None
    assert time.monotonic() - started < flight.ANSWER_SECONDS + 1


def test_no_folder_and_no_socket(tmp_path: Path) -> None:
    assert flight.record(str(tmp_path)) is None
    assert flight.record(str(tmp_path / "gone")) is None


DUMP = """Thread 0x00007f3b8c5ff700 [prefetcher] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "train.py", line 2 in load

Current thread 0x00007f3b9d7fe740 (most recent call first):
  File "train.py", line 1 in <module>
"""


def test_stacks_as_faulthandler_writes_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("step()\n    queue.get()\n")
    other, main = stacks.parse(DUMP, 0x7F3B9D7FE740, str(tmp_path))
    assert (other.name, other.main, main.main) == ("prefetcher", False, True)
    assert [(frame.function, frame.user_code) for frame in other.frames] == [("wait", False), ("load", True)]
    assert [frame.source for frame in other.frames] == ["", "queue.get()"]
    assert stacks.parse(DUMP, None, str(tmp_path))[-1].main


@given(st.binary(max_size=400), st.integers(0, len(DUMP)))
def test_stacks_with_anything_in_between(noise: bytes, at: int) -> None:
    text = (DUMP[:at].encode() + noise + DUMP[at:].encode()).decode("utf-8", "replace")
    for thread in stacks.parse(text, None):
        assert len(thread.frames) <= stacks.MAX_FRAMES


def test_a_disk_that_hangs_costs_its_lines_and_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(9)\n")
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line 2 in <module>\n'
    over, read = threading.Event(), stacks._lines

    def hang(path: str) -> list[str]:
        over.wait()
        return []

    monkeypatch.setattr(stacks, "_lines", hang)
    began = time.monotonic()
    for name in ("train.py", "other.py"):
        (thread,) = stacks.parse(text.replace("train.py", name), None, str(tmp_path))
        assert (thread.frames[0].line, thread.frames[0].source) == (2, "")
    assert time.monotonic() - began < 2 * stacks.READ_SECONDS + 2
    monkeypatch.setattr(stacks, "_lines", read)
    over.set()
    wait_until(lambda: stacks.parse(text, None, str(tmp_path))[0].frames[0].source == "time.sleep(9)")


def test_many_threads_and_deep_stacks_are_bounded() -> None:
    frames = '  File "train.py", line 1 in f\n' * 500
    text = "".join(f"Thread 0x{number:x} (most recent call first):\n{frames}" for number in range(1, 200))
    found = stacks.parse(text, 1)
    assert len(found) == stacks.MAX_THREADS and found[0].main
    assert {len(thread.frames) for thread in found} == {stacks.MAX_FRAMES}


ASKABLE = """
import faulthandler, sys, time
faulthandler.register(62, open(sys.argv[1], "a"))
def waits():
    print("ready", flush=True)
    time.sleep(60)
waits()
"""


@pytest.fixture
def askable(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process that answers, and its folder `rank0`."""
    folder = tmp_path / "rank0"
    folder.mkdir()
    words = [sys.executable, "-c", ASKABLE, str(folder / stacks.FILE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process.pid, folder
        process.kill()


def test_a_process_is_asked_behind_binary_and_ended_lines(askable: tuple[int, Path]) -> None:
    pid, folder = askable
    (folder / stacks.FILE).write_bytes(b"\0\xff\xfe" * 1000)
    text = stacks.ask(pid, str(folder))
    assert text is not None and "in waits" in text and "\0" not in text


def test_a_file_of_stacks_is_bounded_and_keeps_what_crashes_wrote(askable: tuple[int, Path]) -> None:
    pid, folder = askable
    file = folder / stacks.FILE
    crash = b'Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File "a.py"\n'
    filler = b'Thread 0x1 (most recent call first):\n  File "train.py", line 1 in f\n'
    file.write_bytes(filler * 100 + crash + filler * (stacks.MAX_FILE // len(filler)))
    for _ in range(3):
        answer = stacks.ask(pid, str(folder))
        assert answer is not None and "in waits" in answer and "Fatal" not in answer
        assert file.stat().st_size < 64 * 1024
        assert file.read_bytes().count(crash) == 1
        with file.open("ab") as grown:
            grown.truncate(stacks.MAX_FILE + 1)


def test_who_does_not_listen_is_not_asked(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as deaf:
        (tmp_path / stacks.FILE).touch()
        assert stacks.ask(deaf.pid, str(tmp_path)) is None
        assert deaf.poll() is None
        deaf.kill()


def test_who_is_stopped_costs_half_a_second(askable: tuple[int, Path]) -> None:
    pid, folder = askable
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    assert stacks.ask(pid, str(folder)) is None
    assert time.monotonic() - started < stacks.WRITE_SECONDS + 0.5


def test_a_step_since_the_last_sample_counts_and_one_by_a_strange_clock_does_not(
    askable: tuple[int, Path],
) -> None:
    pid, folder = askable
    known = [Known(wire.RankSample(rank=0, local_rank=0, state="running", pid=pid), age=9.0)]
    for at, least, most in ((time.monotonic(), 0.9, 5.0), (time.monotonic() + 1000, 10.0, 14.0)):
        (folder / "steps").write_bytes(STEPS.pack(STEPS_MAGIC, 7, time.time(), at))
        (rank,), _ = gather(str(folder.parent), "a", known, {})
        assert rank.step_age is not None and least <= rank.step_age < most


def test_who_is_stopped_is_not_asked_for_its_flight_record(
    askable: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, folder = askable
    asked: list[str] = []
    monkeypatch.setattr(flight, "record", asked.append)
    os.kill(pid, signal.SIGSTOP)
    sample = wire.RankSample(rank=0, local_rank=0, state="running", pid=pid)
    (rank,), _ = gather(str(folder.parent), "a", [Known(sample, age=9.0)], {})
    assert (rank.process_state, rank.recorded, asked) == ("T", False, [])


def test_ranks_are_looked_at_when_their_folder_is_gone(askable: tuple[int, Path]) -> None:
    pid, folder = askable
    (folder / stacks.FILE).unlink()
    folder.rmdir()
    sample = wire.RankSample(rank=0, local_rank=0, state="running", pid=pid)
    (rank,), stuck = gather(str(folder.parent), "a", [Known(sample, age=9.0)], {})
    assert (rank.process_state, rank.threads, rank.groups, rank.recorded) == ("S", (), (), False)
    assert rank.rss_bytes and rank.main_cpu_share is not None and stuck == ()


def test_bytes_that_nobody_acknowledges(tmp_path: Path) -> None:
    assert sockets.named(3, ["10.0.0.5:4123"] * 3) == ["rank 3 -> 10.0.0.5:4123"]
    assert sockets.unacknowledged(os.getpid()) == []
    assert sockets.unacknowledged(2**22 + 1) == []


def test_the_thread_of_a_rank_is_a_number_or_unknown(askable: tuple[int, Path]) -> None:
    pid, folder = askable
    sample = wire.RankSample(rank=0, local_rank=0, state="running", pid=pid)
    for said in ('{"thread": "x"}', '{"thread": -1}', "[]", "{", '{"thread": 1}'):
        (folder / "rank.json").write_text(said)
        (rank,), _ = gather(str(folder.parent), "a", [Known(sample)], {})
        assert wait_until(lambda rank=rank: rank.threads)[-1].main  # type: ignore[misc]
