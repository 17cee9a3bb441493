"""A host for tests: the real agent.pyz in a home of its own, reached through the real relay over pipes."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from waiting import wait_until

from agent import bundle, files, packed, paths, process, wire

NONCE = "5eed0123456789ab"

SCRIPTS = Path(__file__).parent.parent / "scripts"

M = TypeVar("M", bound=wire.Message)


@functools.lru_cache(maxsize=1)
def agent_bundle() -> bundle.Bundle:
    """The agent as it is shipped, built once."""
    return bundle.build()


def packed_sources(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The modules that stand in the archive as one text, by their path in the package."""
    parts = archive.read(f"agent/{packed.TEXT}").split(packed.MARK)[1:]
    return {name.decode(): source for name, _, source in (part.partition(b"\n") for part in parts)}


class Refused(Exception):
    """The agent answered a request with a failure."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message} ({failure.hint})")
        self.code = failure.code
        self.message = failure.message


class AgentHost:
    """One ENCAMP_HOME with an agent in it. `close` ends whatever still runs there."""

    def __init__(self, home: str, python: str = sys.executable) -> None:
        self.home = home
        self.python = python
        self.pyz = self.install(agent_bundle().data, agent_bundle().sha256)
        self._connections: list[Connection] = []
        self._daemons: dict[int, int] = {}

    def install(self, data: bytes, sha256: str) -> str:
        """Put an agent.pyz where the bootstrap puts it, and return its path."""
        folder = Path(self.home, "agent")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{sha256}.pyz"
        path.write_bytes(data)
        return str(path)

    def command(self, *arguments: str, pyz: str = "") -> list[str]:
        """The command line of a sub-command."""
        return [self.python, "-I", "-S", pyz or self.pyz, *arguments]

    def environment(self) -> dict[str, str]:
        """What a login on this host has set."""
        return {**os.environ, "ENCAMP_HOME": self.home}

    def spec(self, run: str, *words: str, grace: float = 20.0, nproc: int = 2) -> dict[str, Any]:
        """A run in the folder of `home` whose ranks do what `words` say, see `behave.py`."""
        return wire.to_json(
            wire.LaunchSpec(
                run=run,
                name="a run",
                profile="test",
                strategy="ddp",
                target_kind="script",
                target=str(SCRIPTS / "behave.py"),
                args=words,
                cwd=str(Path(self.home).parent),
                nproc_per_node=nproc,
                python=self.python,
                stop_grace_seconds=grace,
            )
        )

    def attempt_dir(self, run: str, attempt: int = 1) -> Path:
        """Where an attempt lies."""
        return Path(paths.attempt_dir(self.home, run, attempt))

    def relay(self, *options: str, pyz: str = "") -> Connection:
        """A connection of which nothing has been read."""
        connection = Connection(
            self.command("connect", "--nonce", NONCE, *options, pyz=pyz), self.environment()
        )
        self._connections.append(connection)
        return connection

    def connect(self, *options: str, pyz: str = "") -> Connection:
        """A connection that has been told everything up to Ready."""
        connection = self.relay(*options, pyz=pyz)
        assert connection.line() == NONCE.encode() + b"\n", connection.complaint()
        connection.expect(wire.Ready)
        pid = connection.hello.pid
        self._daemons[pid] = process.start_time(pid) or 0
        return connection

    def launch(self, viewer: Connection, run: str, *words: str, grace: float = 1.0) -> None:
        """Launch over `viewer` and wait until both ranks have begun."""
        viewer.request("launch", spec=self.spec(run, *words, grace=grace), actor="ann@laptop")
        begun = [self.attempt_dir(run) / f"rank{rank}" / "rank.json" for rank in range(2)]
        wait_until(lambda: all(path.exists() for path in begun), message="the ranks have begun")

    def supervisor(self, run: str) -> int | None:
        """Process id of the first attempt's supervisor, as far as it has said who it is."""
        values = files.read_json(str(self.attempt_dir(run) / "supervisor.json")) or {}
        pid = values.get("pid")
        return pid if isinstance(pid, int) else None

    def log(self) -> str:
        """agent.log."""
        return Path(self.home, "agent.log").read_text()

    def close(self) -> None:
        """End relays, daemons and the processes of all attempts; only those that belong to this home."""
        for connection in self._connections:
            connection.close()
        ours = f"ENCAMP_HOME={self.home}".encode()
        for _ in range(3):  # what was just being started is found by the second look
            for pid in process.pids():
                if ours in process.environ(pid) and pid != os.getpid():
                    kill(pid)
        wait_until(
            lambda: not any(process.alive(*daemon) for daemon in self._daemons.items()), 5, "daemons end"
        )


class Connection:
    """One viewer: a relay, whose messages are read with a deadline."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.relay = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0
        )
        assert self.relay.stdout is not None
        assert self.relay.stdin is not None
        self._out = self.relay.stdout.fileno()
        self._in = self.relay.stdin.fileno()
        self._buffer = b""
        self._next_id = 0
        self.seen: list[wire.Message] = []
        self.bytes_read = 0

    @property
    def hello(self) -> wire.Hello:
        """The agent's hello."""
        return next(message for message in self.seen if isinstance(message, wire.Hello))

    def line(self, timeout: float = 20.0) -> bytes:
        """The next line; empty when the other side has ended."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if not select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"nothing came within {timeout:g} s; last: {self.seen[-3:]}")
            data = os.read(self._out, 1 << 18)
            if not data:
                return b""
            self.bytes_read += len(data)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def message(self, timeout: float = 20.0) -> wire.Message:
        """The next message."""
        line = self.line(timeout)
        assert line, f"the agent hung up: {self.complaint()}"
        message = wire.decode(line)
        assert message is not None
        self.seen.append(message)
        return message

    def expect(self, kind: type[M], which: Callable[[M], bool] = lambda _: True, timeout: float = 20.0) -> M:
        """Read on to the next message of that kind that fits."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.message(max(0.0, deadline - time.monotonic()))
            if isinstance(message, kind) and which(message):
                return message

    def until(self, kind: type[M], which: Callable[[M], bool], timeout: float = 20.0) -> M:
        """The first message of that kind that fits, of those seen or to come."""
        for message in self.seen:
            if isinstance(message, kind) and which(message):
                return message
        return self.expect(kind, which, timeout)

    def until_run(self, run: str, state: str, attempt: int = 1) -> wire.Run:
        """Wait to be told that a run is in that state."""
        return self.until(
            wire.Run, lambda told: (told.run, told.state, told.attempt) == (run, state, attempt)
        )

    def until_event(self, name: str) -> wire.Event:
        """Wait to be told of an event of that name."""
        return self.until(wire.Event, lambda event: event.name == name)

    def until_log(self, run: str, stream: str, size: int) -> None:
        """Wait until a log has at least that size."""

        def large_enough() -> bool:
            part = self.request("log_read", run=run, attempt=1, stream=stream, offset=0, length=0)
            return bool(part["size"] >= size)

        wait_until(large_enough, message=f"{stream} has {size} bytes")

    def send(self, data: bytes) -> None:
        """Write raw bytes to the agent."""
        while data:
            data = data[os.write(self._in, data) :]

    def ask(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._next_id += 1
        self.send(wire.encode(wire.Request(self._next_id, method, params)))
        return self._next_id

    def answer(self, number: int, timeout: float = 30.0) -> dict[str, Any]:
        """The result of request `number`. Raises Refused."""
        message = self.expect(
            wire.Reply | wire.Failure,  # type: ignore[arg-type]
            lambda message: message.id == number,
            timeout,
        )
        if isinstance(message, wire.Failure):
            raise Refused(message)
        return message.result

    def request(self, method: str, timeout: float = 30.0, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raises Refused."""
        return self.answer(self.ask(method, **params), timeout)

    def read_log(self, until: int, timeout: float = 30.0) -> bytes:
        """The bytes of Log messages up to offset `until`, each exactly where the one before ended."""
        data = b""
        start: int | None = None
        deadline = time.monotonic() + timeout
        while start is None or start + len(data) < until:
            log = self.expect(wire.Log, timeout=max(0.0, deadline - time.monotonic()))
            start = log.offset if start is None else start
            assert log.offset == start + len(data), "no gap, no duplicate"
            data += wire.payload(log.data)
        return data

    def end_input(self) -> None:
        """Close our sending side."""
        assert self.relay.stdin is not None
        self.relay.stdin.close()

    def wait(self, timeout: float = 20.0) -> int:
        """The relay's exit code."""
        return self.relay.wait(timeout)

    def complaint(self) -> str:
        """What the relay said on standard error; it must have ended."""
        self.relay.wait(20)
        assert self.relay.stderr is not None
        return self.relay.stderr.read().decode()

    def close(self) -> None:
        """Hang up, as a lost SSH connection does."""
        if self.relay.returncode is None:
            kill(self.relay.pid)
            self.relay.wait(5)
        for pipe in (self.relay.stdin, self.relay.stdout, self.relay.stderr):
            if pipe is not None:
                pipe.close()


def start_time(pid: int | None) -> int:
    """Of a process as `process.alive` wants it; 0 when there is none."""
    return process.start_time(pid or 0) or 0


def gone(pid: int) -> bool:
    """Whether the process has ended, be it that nobody has collected it yet."""
    found = process.stat(pid)
    return found is None or found.dead


def kill(pid: int) -> None:
    """SIGKILL a process of ours, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
