"""Ending trees of processes: who belongs, who does not, and nobody else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from agent import files, process, reap

Start = Callable[..., tuple[int, int]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code in a process and returns its identity; all are killed in the end."""
    children = []

    def start_code(code: str = "", **env: str) -> tuple[int, int]:
        command = [sys.executable, "-S", "-c", f"{code}\nprint(1, flush=True)\nimport time; time.sleep(600)"]
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        started = process.start_time(child.pid)
        assert started is not None
        return child.pid, started

    yield start_code
    for child in children:
        reap.kill(process.descendants({child.pid}))
        child.kill()
        child.communicate()


def marks(folder: Path) -> dict[str, str]:
    return {"ENCAMP_RUN": "r", "ENCAMP_ATTEMPT": "1", "ENCAMP_ATTEMPT_DIR": str(folder), "OTHER": "x"}


def test_an_attempt_s_processes_are_found_by_mark_by_file_and_by_parent(tmp_path: Path, start: Start) -> None:
    marked = start(**marks(tmp_path))
    named = start(
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    )
    files.write_json(str(tmp_path / "launcher.json"), {"pid": named[0], "start_time": named[1]})
    rank = start()
    (tmp_path / "rank3").mkdir()
    files.write_json(str(tmp_path / "rank3" / "rank.json"), {"pid": rank[0], "start_time": rank[1]})
    (child,) = process.descendants({named[0]}).items()
    tree = reap.Tree(str(tmp_path), marks(tmp_path))
    assert tree.members() == dict([marked, named, rank, child])


def test_the_same_run_in_another_home_is_another_s(tmp_path: Path, start: Start) -> None:
    start(**marks(tmp_path / "elsewhere"))
    assert reap.Tree(str(tmp_path), marks(tmp_path)).members() == {}


def test_a_pid_that_came_back_is_not_the_rank(tmp_path: Path, start: Start) -> None:
    pid, started = start()
    (tmp_path / "rank0").mkdir()
    files.write_json(str(tmp_path / "rank0" / "rank.json"), {"pid": pid, "start_time": started - 1})
    assert reap.Tree(str(tmp_path), {}).members() == {}
    reap.kill({pid: started - 1})
    reap.ask_to_end({pid: started - 1})
    assert process.alive(pid, started)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": 1, "start_time": 5}', '{"pid": "7"}', '{"pid": -9}']
)
def test_files_that_say_nothing_name_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "launcher.json").write_text(text)
    assert reap.read_identity(str(tmp_path / "launcher.json")) is None


def test_a_stopped_process_hears_that_it_is_to_end(start: Start, tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    pid, started = start(
        "import os, signal\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(ends)!r}, 'w').close(), os._exit(0)))"
    )
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: getattr(process.stat(pid), "state", "") == "T")
    reap.ask_to_end({pid: started})
    wait_until(lambda: not process.alive(pid, started))
    assert ends.exists()


def test_killing_does_not_need_consent(start: Start) -> None:
    deaf = start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    reap.ask_to_end(dict([deaf]))
    reap.kill(dict([deaf]))
    wait_until(lambda: not process.alive(*deaf))
    reap.kill(dict([deaf]))  # and what is gone is no error
