"""Processes read from /proc: real ones, with awkward names, dead ones and ones without a parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from agent import process

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP, env={**os.environ, "ENCAMP_TEST_MARK": "one", "ENCAMP_TEST_OTHER": "x"})
    try:
        wait_until(lambda: b"ENCAMP_TEST_MARK=one" in process.environ(child.pid))
        yield child
    finally:
        child.kill()
        child.wait()


def test_our_own_process_is_read_as_it_is() -> None:
    found = process.stat(os.getpid())
    assert found is not None
    assert (found.pid, found.parent, found.dead) == (os.getpid(), os.getppid(), False)
    assert found.state in "RS"
    assert found.rss_bytes > 1024 * 1024
    assert found.cpu_ticks > 0
    booted = process.boot_time()
    assert booted is not None
    assert abs(booted + found.start_time / process.TICKS_PER_SECOND - time.time()) < 24 * 3600
    assert process.start_time(os.getpid()) == found.start_time
    assert len(process.boot_id()) == 36


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([str(program), *SLEEP[1:]], executable=str(program)) as child:
        try:
            wait_until(lambda: b"a) R 1 (b" in Path(f"/proc/{child.pid}/stat").read_bytes())
            found = process.stat(child.pid)
            assert found is not None
            assert found.parent == os.getpid()
            assert found.state in "RSD"
        finally:
            child.kill()


def test_identity_is_pid_and_start_time_and_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    started = process.start_time(sleeper.pid)
    assert started is not None
    assert process.alive(sleeper.pid, started)
    assert not process.alive(sleeper.pid, started + 1)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    found = process.stat(sleeper.pid)
    assert found is not None
    assert found.dead
    assert not process.alive(sleeper.pid, started)
    assert process.environ(sleeper.pid) == frozenset()
    sleeper.wait()
    assert process.stat(sleeper.pid) is None
    assert process.start_time(sleeper.pid) is None


def test_a_process_lives_as_long_as_one_of_its_threads() -> None:
    leave = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", leave]) as child:
        try:
            wait_until(lambda: getattr(process.stat(child.pid), "state", "") == "Z")
            started = process.start_time(child.pid)
            assert started is not None
            assert process.alive(child.pid, started)
        finally:
            child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process.alive(child.pid, started)


def test_marks_find_a_process_only_when_all_of_them_are_there(sleeper: subprocess.Popen[bytes]) -> None:
    mark = {"ENCAMP_TEST_MARK": "one"}
    assert process.marked(mark) == {sleeper.pid: process.start_time(sleeper.pid)}
    assert process.marked({**mark, "ENCAMP_TEST_OTHER": "x"}).keys() == {sleeper.pid}
    assert process.marked({**mark, "ENCAMP_TEST_OTHER": "y"}) == {}
    assert process.marked({"ENCAMP_TEST_MARK": "on"}) == {}


def test_descendants_are_found_down_to_the_last(tmp_path: Path) -> None:
    nested = f"import subprocess, sys; subprocess.run({SLEEP!r})"
    with subprocess.Popen([sys.executable, "-S", "-c", nested], start_new_session=True) as child:
        try:
            found = wait_until(lambda: process.descendants({child.pid}))
            assert len(found) == 1
            assert found == process.descendants({child.pid, *found}) | found
            assert child.pid in process.descendants({os.getpid()})
            assert os.getpid() not in process.descendants({os.getpid()})
            assert found.items() <= process.descendants({os.getpid()}).items()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert process.descendants({child.pid}) == {}


def test_a_sleeping_process_says_where_it_sleeps(sleeper: subprocess.Popen[bytes]) -> None:
    assert isinstance(process.wait_channel(sleeper.pid), str)
    assert process.wait_channel(2**22 + 1) == ""
