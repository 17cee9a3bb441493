"""Ports of a host on this machine, through a real sshd: what passes, what is refused, what outlives a cut."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ssh.faults import closed_port
from ssh.sshd import Sshd
from waiting import eventually

from tui.fleet import forward, local_ports
from tui.fleet.errors import EncampError, UsageError
from tui.fleet.forward import Forwarder, Wish
from tui.fleet.prompts import NoPrompts
from tui.fleet.ssh.tunnel import ForwardingForbidden

pytestmark = pytest.mark.sshd

YES = NoPrompts(accept_new_host_key=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(forward, "LAST_RETRY", 0.3)


@pytest.fixture
async def service() -> AsyncIterator[int]:
    """A program on the host: it answers when the other side has finished, with all it got and `bye`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.read() + b"bye")
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@asynccontextmanager
async def forwarding(server: Sshd, *wishes: Wish) -> AsyncIterator[tuple[list[forward.Opened], list[str]]]:
    said: list[str] = []
    forwarder = Forwarder(server.host(), YES, wishes, said.append)
    serving = None
    try:
        opened = await forwarder.open()
        serving = asyncio.ensure_future(forwarder.serve())
        yield opened, said
    finally:
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])
        await forwarder.close()


async def through(port: int, data: bytes) -> bytes:
    """What comes back when `data` is sent to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def test_bytes_pass_both_ways_and_each_side_ends_for_itself(
    sshd: Sshd, service: int, client_home: Path
) -> None:
    async with forwarding(sshd, Wish(service), Wish(service, 0)) as (opened, said):
        many = os.urandom(3_000_000)
        for port in opened:
            assert await through(port.local, many) == many + b"bye"
        both = await asyncio.gather(*(through(opened[0].local, b"%d" % i) for i in range(20)))
        assert both == [b"%dbye" % i for i in range(20)]
    assert said == []
    with pytest.raises(ConnectionRefusedError):
        await through(opened[0].local, b"")


async def test_only_this_machine_reaches_it(sshd: Sshd, service: int, client_home: Path) -> None:
    async with forwarding(sshd, Wish(service)) as (opened, _):
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex(("127.0.0.2", opened[0].local)) != 0, "bound to more than 127.0.0.1"


async def test_the_same_number_if_it_is_free_and_else_another(
    sshd: Sshd, service: int, client_home: Path
) -> None:
    free = closed_port()
    async with forwarding(sshd, Wish(free), Wish(service)) as (opened, said):
        assert (opened[0].local, opened[0].taken_by) == (free, None)
        assert opened[1].local != service
        assert f"pid {os.getpid()}" in str(opened[1].taken_by)
        assert said == []


async def test_a_port_where_nothing_listens_is_said_once(sshd: Sshd, client_home: Path) -> None:
    there, here = closed_port(), closed_port()
    async with forwarding(sshd, Wish(there, here)) as (_, said):
        assert said == [], "the program may be started later"
        for _ in range(2):
            with pytest.raises(ConnectionError):
                assert await through(here, b"x") != b"", "a refusal looks like an end"
        assert len(said) == 1, "a browser tries many times"
        assert f"port {there}" in said[0]


async def test_a_port_that_was_chosen_is_had_or_refused(sshd: Sshd, service: int, client_home: Path) -> None:
    with pytest.raises(UsageError, match=rf"Port {service} .*pid {os.getpid()}"):
        async with forwarding(sshd, Wish(8888, service)):
            pass
    assert sshd.connections() == 0, "refused before anybody is asked for a password"


async def test_a_host_that_forwards_nothing(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    server = run_sshd(config="AllowTcpForwarding no")
    with pytest.raises(ForwardingForbidden, match="does not let ports be forwarded") as refused:
        async with forwarding(server, Wish(6006)):
            pass
    assert "AllowTcpForwarding" in refused.value.hint
    assert refused.value.exit_code == 1


async def test_a_host_that_forwards_to_one_port_only(
    run_sshd: Callable[..., Sshd], service: int, client_home: Path
) -> None:
    server = run_sshd(config=f"PermitOpen localhost:{service}")
    async with forwarding(server, Wish(service)) as (opened, _):
        assert await through(opened[0].local, b"x") == b"xbye"
    with pytest.raises(EncampError, match="does not let ports be forwarded"):
        async with forwarding(server, Wish(closed_port())):
            pass


async def test_the_service_is_not_visited_before_the_user_is(sshd: Sshd, client_home: Path) -> None:
    visits = []
    program = await asyncio.start_server(lambda _, writer: visits.append(writer), "127.0.0.1", 0)
    async with forwarding(sshd, Wish(program.sockets[0].getsockname()[1])) as (opened, _):
        assert visits == [], "a debugger that takes one connection would have been used up"
        _, writer = await asyncio.open_connection("127.0.0.1", opened[0].local)
        await eventually(lambda: len(visits) == 1)
        writer.close()
    visits[0].transport.abort()
    program.close()


async def test_it_outlives_the_connection(sshd: Sshd, service: int, client_home: Path) -> None:
    async with forwarding(sshd, Wish(service)) as (opened, said):
        reader, writer = await asyncio.open_connection("127.0.0.1", opened[0].local)
        writer.write(b"x")
        await eventually(lambda: sshd.connections() == 1)
        sshd.stop()
        with pytest.raises(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) != b"", "a cut looks like an end"
        writer.close()
        await eventually(lambda: any("was lost" in text for text in said))
        waiting = asyncio.ensure_future(through(opened[0].local, b"later"))
        sshd.start()
        assert await waiting == b"laterbye", "who connects in between is served when the host is back"
        assert any("connected again" in text for text in said)


def test_nobody_listens() -> None:
    assert local_ports.holder(closed_port()) is None
