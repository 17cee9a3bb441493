"""The demo: what it reports, and that nothing of it is left however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from tui import demo, demo_run
from tui.__main__ import main
from tui.fleet.errors import EncampError

torch = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The folder for all temporary files of a demo; when the test is over nothing of it may be left."""
    folder = tmp_path / "t"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []
    assert living(folder) == []


def living(folder: Path) -> list[str]:
    """The command lines of the processes that have anything to do with `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # Its environment names the folder as TMPDIR or ENCAMP_HOME, its arguments name files in it.
            about = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if str(folder).encode() in about:
                found.append((process / "cmdline").read_bytes().decode())
    return found


def start(place: Path, *words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tui", "demo", *words],
        env={**os.environ, "TMPDIR": str(place), "TERM": "xterm-256color"},
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,  # type: ignore[call-overload]
    )


@torch
def test_headless_it_trains_to_the_end_and_reports(place: Path) -> None:
    with start(place, "--headless", "--steps", "20", "--json") as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert [host["name"] for host in result["hosts"]] == ["demo-1", "demo-2"]
    assert (result["run"]["state"], result["run"]["strategy"]) == ("finished", "ddp")
    assert result["run"]["id"].startswith("gpt-tiny-")
    assert [(rank["rank"], rank["step"]) for rank in result["ranks"]] == [(0, 20), (1, 20)]
    for rank in result["ranks"]:
        assert rank["loss_last"] < rank["loss_first"]
        assert rank["log_bytes"] > 0
    seconds = result["seconds"]
    assert 0 < seconds["connect"] <= seconds["first_sample"] < seconds["first_step"] < seconds["total"]
    assert b"encamp: launching gpt-tiny" in err
    assert b"Warning" not in err


@torch
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "launching"),
        pytest.param(signal.SIGINT, "trains on", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_quietly_and_completely(place: Path, number: signal.Signals, moment: str) -> None:
    with start(place, "--headless", "--hosts", "1") as process:
        assert process.stderr is not None
        said = b""
        while moment.encode() not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert any("agent" in command for command in living(place))
        process.send_signal(number)
        process.send_signal(number)  # an impatient user: the clean-up goes on
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (out, err) == (b"", b"")


@torch
@pytest.mark.parametrize("leave", ["ctrl-q", pytest.param("terminal closed", marks=pytest.mark.slow)])
def test_leaving_the_app_leaves_nothing(place: Path, leave: str) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    os.set_blocking(master, False)
    shown = bytearray()

    def screen_has(*words: bytes) -> bool:
        with contextlib.suppress(OSError):
            shown.extend(os.read(master, 65536))
        return all(word in shown for word in words)

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with start(
        place, "--hosts", "1", stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal
    ) as process:
        os.close(terminal)
        try:
            wait_until(lambda: screen_has(b"trains on", b"loss", b"demo-1"), 60, "the run screen")
            if leave == "ctrl-q":
                os.write(master, b"\x11")
                wait_until(lambda: screen_has(b"\x1b[?1049l"), 30, "the terminal as it was before")
            else:
                os.close(master)
            wait_until(lambda: (screen_has(), process.poll() is not None)[1], 60, "the end of the process")
        finally:
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(OSError):
                os.close(master)
    assert process.returncode == (0 if leave == "ctrl-q" else 128 + signal.SIGHUP), bytes(shown[-2000:])
    assert b"Traceback" not in shown


def test_a_failure_on_the_way_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> str:
        raise EncampError("It broke.", "Mend it.")

    monkeypatch.setattr(demo, "_launch", fail)
    monkeypatch.setattr(demo.tempfile, "tempdir", str(place))
    before = dict(os.environ)
    code = main(["demo", "--headless", "--hosts", "1", "--json"])
    captured = capsys.readouterr()
    assert code == 1
    assert json.loads(captured.out)["error"]["message"] == "It broke."
    assert dict(os.environ) == before


def test_without_torch_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_run.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no other Python either
    assert main(["demo", "--headless"]) == 1
    captured = capsys.readouterr()
    assert "pip install" in captured.err
    assert captured.out == ""
