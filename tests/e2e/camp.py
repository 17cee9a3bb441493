"""An engineer's machine and a real host, driven by nothing but the command `encamp`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.host import LabHost
from ssh.sshd import Sshd
from waiting import wait_until

SCRIPTS = Path(__file__).parent / "scripts"
BEHAVE = Path(__file__).parent.parent / "scripts" / "behave.py"
COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


def ended(process: subprocess.Popen[bytes], timeout: float = 100) -> Done:
    """Wait for the end of a command that was started; it is killed when that takes longer."""
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Done(process.returncode, out, errors.decode())


class Camp:
    """The folders of one user, and commands run in them as separate processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ENCAMP_", "SSH_"))},
            "HOME": str(folder),
            "ENCAMP_CONFIG_DIR": str(folder / "config"),
            "ENCAMP_STATE_DIR": str(folder / "state"),
        }

    def start(self, *words: str, out: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start a command in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "tui", *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, code: int | None = 0) -> Done:
        """Run a command to its end, which has to be `code` (None: any)."""
        with self.start(*words) as process:
            done = ended(process, COMMAND_SECONDS)
        assert code is None or done.code == code, f"encamp {' '.join(words)}: {done}"
        return done

    def add(self, server: Sshd, name: str = "box") -> None:
        """Add a host in the way in which a provider's page names it."""
        command = f"ssh -p {server.port} -i {server.key} -o IdentitiesOnly=yes {server.user}@127.0.0.1"
        self.run("hosts", "add", command, "--name", name, "--accept-new-host-key")

    def note_down(self, server: Sshd, name: str = "box") -> None:
        """Put a host into the list without connecting to it."""
        command = f"ssh -p {server.port} -i {server.key} -o IdentitiesOnly=yes {server.user}@127.0.0.1"
        self.run("hosts", "add", command, "--name", name, "--no-connect")

    def profile(self, script: Path | str, *args: str, name: str = "plain", grace: float = 10) -> str:
        """A profile for a plain script with two ranks; returns its path."""
        path = self.folder / f"{name}.toml"
        path.write_text(
            f"[run]\nscript = {json.dumps(str(script))}\nargs = {json.dumps(list(args))}\n"
            f"nproc_per_node = 2\npython = {json.dumps(sys.executable)}\nstop_grace_seconds = {grace}\n"
        )
        return str(path)

    def launch(self, script: Path | str, *args: str, on: str = "box", grace: float = 10) -> str:
        """Launch a plain script with two ranks and return the run's id."""
        launched = self.run("launch", self.profile(script, *args, grace=grace), "--on", on, "--json").json
        assert (launched["attempt"], launched["hosts"], launched["world_size"]) == (1, [on], 2)
        return str(launched["run"])

    def status(self, run: str) -> dict[str, Any]:
        """A run as `encamp status` has it."""
        runs = self.run("status", "--json").json["runs"]
        return next(entry for entry in runs if entry["id"] == run)


class Terminal:
    """A command on a terminal of its own, with somebody who types. Its stdout is a pipe, unless `screen`."""

    def __init__(self, camp: Camp, *words: str, screen: bool = False) -> None:
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.set_blocking(self.master, False)
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tui", *words],
            env={**camp.env, "TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal if screen else subprocess.PIPE,
            stderr=terminal,
        )
        os.close(terminal)

    def sees(self, text: str) -> bool:
        """Whether the terminal has shown `text`."""
        with contextlib.suppress(OSError):
            self.shown += os.read(self.master, 65536)
        return text.encode() in self.shown

    def wait(self, text: str) -> None:
        wait_until(lambda: self.sees(text), 20, f"{text} on the terminal")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> tuple[int, bytes]:
        """Wait for its end: the exit code, and what is in the pipe."""
        wait_until(lambda: (self.sees(""), self.process.poll() is not None)[1], 30, "the end")
        return self.process.returncode, self.process.stdout.read() if self.process.stdout else b""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        os.close(self.master)


def log_file(server: Sshd | LabHost, run: str, stream: str, attempt: int = 1) -> Path:
    """Where a log is on the host."""
    return server.home / ".encamp" / "runs" / run / "attempts" / str(attempt) / f"{stream}.log"


def grown(path: Path, beyond: int = 0, by: int = 2000) -> int:
    """Wait until a file has `by` bytes more than `beyond`; returns its size."""
    return wait_until(
        lambda: size if path.exists() and (size := path.stat().st_size) > beyond + by else 0,
        message=f"{path} does not grow",
    )
