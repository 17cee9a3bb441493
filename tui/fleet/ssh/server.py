"""SSH servers embedded in this process, on loopback: the hosts of the demo and of tests.

Each has a host key, a client key and a home directory of its own, all temporary. What is asked for runs as
ordinary processes of this user; closing the server ends them, and whatever they left in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import asyncssh

from ..hosts import Host
from ..patience import within

ADDRESS = "127.0.0.1"

_ON_TERMINAL = """\
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["/bin/sh", "-c", sys.argv[1]])))
"""

END_SECONDS = 5.0
"""How long processes may take to end when they are asked to."""


class EmbeddedHost:
    """One server. `async with EmbeddedHost("demo-1") as server:` runs it for the body.

    `environment` is added to what commands get; HOME and TMPDIR are the server's own.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.environment = dict(environment or {})
        self.address = ADDRESS
        self.port = 0
        """The port it listens on, once it has started."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"encamp-{name}-"))
        self.home = self.folder / "home"
        self.client_key = self.folder / "id_ed25519"
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._commands: set[subprocess.Popen[bytes]] = set()
        self._serving: set[asyncio.Task[object]] = set()

    @property
    def host(self) -> Host:
        """This server as the inventory has hosts."""
        return Host(self.name, self.address, self.port, "demo", (str(self.client_key),), identities_only=True)

    async def __aenter__(self) -> EmbeddedHost:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the server, all that runs in its home, and remove its files."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for connection in list(self._connections):
            connection.abort()
        for command in list(self._commands):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGTERM)
        await asyncio.to_thread(end_processes_of, self.home)
        for command in list(self._commands):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
        if self._serving:
            await asyncio.wait(self._serving, timeout=END_SECONDS)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _start(self) -> None:
        self.home.mkdir(mode=0o700)
        (self.folder / "tmp").mkdir(mode=0o700)
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"encamp {self.name}")
        key.write_private_key(self.client_key)
        self.client_key.chmod(0o600)
        authorized = asyncssh.import_authorized_keys(key.export_public_key().decode("ascii"))
        self._acceptor = await asyncssh.listen(
            self.address,
            0,
            server_factory=lambda: _Server(self._connections),
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=authorized,
            process_factory=self._run,
            encoding=None,
            allow_scp=False,
            line_editor=False,
        )
        self.port = self._acceptor.get_port()

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run one command as sshd would, under a shell and in the home."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ENCAMP_")},
            **self.environment,
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
        }
        command = subprocess.Popen(  # noqa: ASYNC220 (with asyncio's own the end of the output gets lost)
            _command(process),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env=environment,
            start_new_session=True,
        )
        self._commands.add(command)
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # A thread of its own: commands run as long as connections live, and would fill any pool.
        threading.Thread(target=_tell_end, args=(command, loop, ended), daemon=True).start()
        try:
            # Without `send_eof=False` the end of one stream would cut off what is still to come of the other.
            await process.redirect(command.stdin, command.stdout, command.stderr, send_eof=False)
            await ended.wait()
            await process.stdout.drain()
            await process.stderr.drain()
            process.exit(command.returncode if command.returncode >= 0 else 128 - command.returncode)
        except (asyncssh.Error, OSError):
            pass  # the client has gone; the command sees the end of its stdin
        finally:
            self._commands.discard(command)
            self._serving.discard(serving)
            # The process has coroutines that only this awaits, and Python complains about those left over.
            with contextlib.suppress(TimeoutError):
                await within(END_SECONDS, process.wait_closed())


def _command(process: asyncssh.SSHServerProcess[bytes]) -> list[str]:
    """What to run: a command as it is, or what a terminal was asked for on one, in the size it has now."""
    if process.term_type is None:
        return ["/bin/sh", "-c", process.command or "true"]
    columns, rows = process.term_size[:2]
    command = shlex.quote(process.command) if process.command else ""
    inner = f"stty cols {columns} rows {rows}; exec /bin/sh {f'-c {command}' if command else '-i'}"
    return ["env", f"TERM={process.term_type}", sys.executable, "-c", _ON_TERMINAL, inner]


class _Server(asyncssh.SSHServer):
    """Keeps the list of connections."""

    def __init__(self, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Add it."""
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the signature is asyncssh's)
        """Take it off."""
        if self._connection is not None:
            self._connections.discard(self._connection)


def _tell_end(
    command: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> None:
    command.wait()
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
        loop.call_soon_threadsafe(ended.set)


def end_processes_of(home: Path, grace: float = END_SECONDS) -> None:
    """End every process that was started in `home`, whatever became of it: first asked, then killed.

    Returns when none is left. Raises TimeoutError when one cannot be killed.
    """
    asked_until = time.monotonic() + grace
    killed_until = asked_until + END_SECONDS
    told: set[int] = set()
    while victims := processes_of(home):
        now = time.monotonic()
        if now > killed_until:
            raise TimeoutError(f"processes {sorted(victims)} of {home} do not end")
        for pid in victims:
            if now > asked_until or pid not in told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if now > asked_until else signal.SIGTERM)
        time.sleep(0.02)


def processes_of(home: Path) -> list[int]:
    """The processes, other than this one, whose HOME or ENCAMP_HOME is `home` or in it; no dead ones."""
    folder = os.fsencode(home)
    inside = tuple(name + folder + end for name in (b"HOME=", b"ENCAMP_HOME=") for end in (b"\0", b"/"))
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            environment = b"\0" + (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if any(b"\0" + entry in environment for entry in inside):
            found.append(int(process.name))
    return found
