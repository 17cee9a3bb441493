"""`encamp shell` on a real terminal and in pipes, and the app that stands aside for it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.camp import Camp, Terminal
from ssh.sshd import Sshd

pytestmark = pytest.mark.sshd

NEW = "--accept-new-host-key"


def settings(terminal: Terminal) -> list[object]:
    return list(termios.tcgetattr(terminal.master))


def piped(camp: Camp, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tui", "shell", "box", "--", *command],
        env=camp.env,
        input=data,
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_a_session_with_everything_a_terminal_does(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]
) -> None:
    newcomer.note_down(box)
    here = terminal("shell", "box", NEW, screen=True)
    before = settings(here)
    here.type("PS1=rea'dy>'; unset PROMPT_COMMAND\n")
    here.wait("ready>")
    assert settings(here) != before, "keys go to the host as they are"
    here.type('echo "<$((6*7))-$TERM-$(stty size)>"\n')
    here.wait("<42-xterm-256color-40 120>")
    fcntl.ioctl(here.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    here.process.send_signal(signal.SIGWINCH)
    here.type('while [ "$(stty size)" != "50 100" ]; do sleep 0.05; done; echo "<$(stty size)>"\n')
    here.wait("<50 100>")
    here.type('echo "<$((1+1))>"; sleep 1000\n')
    here.wait("<2>")
    here.type("\x03")
    here.type('echo "<$((2+1))>"; exit 7\n')
    here.wait("<3>")
    assert here.end()[0] == 7
    assert settings(here) == before


def test_a_command_gets_a_terminal_when_there_is_one(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]
) -> None:
    newcomer.note_down(box)
    here = terminal("shell", "box", NEW, "--", 'tty; read x; echo "<$x>"', screen=True)
    here.wait("/dev/pts/")
    here.type("typed\r")
    here.wait("<typed>")
    assert here.end()[0] == 0


def test_pipes_carry_bytes_and_how_it_ended(camp: Camp) -> None:
    data = os.urandom(1_000_000)
    done = piped(camp, "tee /dev/stderr; exit 3", data=data)
    assert (done.returncode, done.stdout, done.stderr) == (3, data, data)
    assert piped(camp, "kill", "-9", "$$").returncode == 137
    assert piped(camp, "echo", "--json", "a b").stdout == b"--json a b\n", "words are joined as by ssh"


def test_a_file_as_input(camp: Camp) -> None:
    with Path(__file__).open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tui", "shell", "box", "--", "cat"],
            env=camp.env,
            stdin=file,
            capture_output=True,
            check=True,
            timeout=60,
        )
    assert done.stdout.startswith(b'"""`encamp shell` on a real terminal')


def test_without_a_terminal_it_needs_a_command(camp: Camp) -> None:
    done = camp.run("shell", "box", code=2)
    assert "needs a terminal" in done.err
    assert "encamp shell box -- COMMAND" in done.err
    assert camp.run("shell", "nobody", "--", "true", code=2).err.startswith("encamp: There is no host nobody")


@pytest.mark.parametrize("end", ["cut", "terminated"])
def test_the_terminal_is_put_back_whatever_ends_it(
    newcomer: Camp, run_sshd: Callable[..., Sshd], terminal: Callable[..., Terminal], end: str
) -> None:
    server = run_sshd()
    newcomer.note_down(server)
    here = terminal("shell", "box", NEW, screen=True)
    before = settings(here)
    here.type('echo "<$((6*7))>"\n')
    here.wait("<42>")
    if end == "cut":
        server.stop()
        here.wait("was lost")
        assert here.end()[0] == 3
    else:
        here.process.terminate()
        assert here.end()[0] == 128 + signal.SIGTERM
    assert settings(here) == before


def test_through_a_bastion(newcomer: Camp, box: Sshd, run_sshd: Callable[..., Sshd]) -> None:
    inner = run_sshd()
    folder = newcomer.folder / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {box.port}\n  User root\n  IdentityFile {box.key}\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {inner.port}\n  User root\n  IdentityFile {inner.key}\n"
        "  ProxyJump gate\n"
    )
    newcomer.run("hosts", "add", "inner", "--no-connect")
    done = newcomer.run("shell", "inner", NEW, "--", 'echo "$HOME"')
    assert done.out.decode().strip() == str(inner.home)
    assert "from 127.0.0.1" in box.log.read_text()


def test_the_app_stands_aside_and_comes_back(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]
) -> None:
    newcomer.add(box)
    app = terminal(screen=True)
    app.wait("idle")
    app.type("s")
    app.wait("\x1b[?1049l")
    app.type("PS1=rea'dy>'; unset PROMPT_COMMAND\n")
    app.wait("ready>")
    app.shown = b""
    app.type('sleep 2; echo "<$((6*7))>"; exit 5\n')
    app.wait("<42>")
    assert b"idle" not in app.shown, "the app draws while the terminal is not its own"
    app.wait("\x1b[?1049h")
    app.wait("idle")
    app.type("\x11")
    assert app.end()[0] == 0
    assert not app.sees("Traceback")


def test_the_app_comes_back_from_a_host_that_cannot_be_reached(
    newcomer: Camp, run_sshd: Callable[..., Sshd], terminal: Callable[..., Terminal]
) -> None:
    server = run_sshd()
    newcomer.note_down(server)
    server.stop()
    app = terminal(screen=True)
    app.wait("box")
    app.type("s")
    app.wait("enter goes back")
    assert b"refuses connections" in app.shown
    app.shown = b""
    app.type("\r")
    app.wait("\x1b[?1049h")
    app.wait("box")
    app.type("\x11")
    assert app.end()[0] == 0
