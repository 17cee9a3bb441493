"""The embedded hosts of the demo: real connections to servers in this process, and nothing left of them."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from waiting import eventually

from tui.fleet.errors import AuthFailed
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.ssh.client import SshClient
from tui.fleet.ssh.interactive import Terminal
from tui.fleet.ssh.server import EmbeddedHost, end_processes_of, processes_of
from tui.fleet.store import Store

YES = NoPrompts(accept_new_host_key=True)


async def test_commands(client_home: Path) -> None:
    async with EmbeddedHost("demo-1", environment={"COLOUR": "blue"}) as server:
        connection = await SshClient().connect(server.host, YES)
        command = 'echo "$PWD $HOME $COLOUR $ENCAMP_RUN"; echo no >&2; exit 7'
        for _ in range(20):
            running = await connection.open_exec(command)
            assert await running.read(1000) == f"{server.home} {server.home} blue \n".encode()
            assert await running.read(1000) == b""
            await running.wait(5)
            assert running.exit_status == 7
            assert running.stderr_tail() == b"no\n"
        data = os.urandom(3_000_000)
        echo = await connection.open_exec("cat")
        sending = asyncio.ensure_future(echo.write(data))
        received = b""
        while len(received) < len(data):
            received += await echo.read(65536)
        await sending
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        await connection.close()
    assert not server.folder.exists()


async def test_only_its_own_key_opens_it(client_home: Path) -> None:
    async with EmbeddedHost("demo-1") as first, EmbeddedHost("demo-2") as second:
        assert first.port != second.port
        stranger = dataclasses.replace(first.host, identity_files=(str(second.client_key),))
        with pytest.raises(AuthFailed):
            await SshClient().connect(stranger, YES)
        await (await SshClient().connect(second.host, YES)).close()


async def test_a_client_that_goes_ends_its_command(client_home: Path) -> None:
    async with EmbeddedHost("demo-1") as server:
        connection = await SshClient().connect(server.host, YES)
        await connection.open_exec("exec cat")
        await eventually(lambda: processes_of(server.home))
        connection.abort()
        await eventually(lambda: not processes_of(server.home))


async def test_the_agent_and_all_that_it_started_end_with_the_host(client_home: Path) -> None:
    async with EmbeddedHost("demo-1") as server:
        session = Session(server.host, Store(), YES)
        task = asyncio.ensure_future(session.run())
        try:
            await session.connected(30)
        finally:
            await session.close()
            await asyncio.wait([task])
        assert processes_of(server.home)
    assert not processes_of(server.home)
    assert not server.folder.exists()


def test_processes_that_ignore_being_asked_are_killed(tmp_path: Path) -> None:
    path = os.environ["PATH"]
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo deaf; sleep 600 & wait"],
        env={"ENCAMP_HOME": f"{tmp_path}/x", "PATH": path},
        stdout=subprocess.PIPE,
    )
    other = subprocess.Popen(["sleep", "600"], env={"ENCAMP_HOME": f"{tmp_path}-other", "PATH": path})
    try:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"deaf\n"
        end_processes_of(tmp_path, grace=0.2)
        assert stubborn.wait(5) == -9
        assert other.poll() is None
    finally:
        for process in (stubborn, other):
            process.kill()
            process.communicate()


async def test_a_shell_on_a_terminal(client_home: Path) -> None:
    async with EmbeddedHost("demo-1") as server:
        connection = await SshClient().connect(server.host, YES)
        shell = await connection.open_interactive(None, Terminal("xterm", 101, 37))
        await shell.write(b'echo "<$TERM $(stty size)>"; exit 7\n')
        shown = b""
        while data := await shell.read(65536):
            shown += data
        assert b"<xterm 37 101>" in shown
        assert await shell.wait() == 7
        await connection.close()
