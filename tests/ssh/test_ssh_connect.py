"""Logging in on a real sshd: keys, passwords, and every way in which it may fail."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.faults import Person, closed_port, link_to, port_that_says
from ssh.sshd import PASSWORD, Sshd
from waiting import eventually

from tui.fleet.errors import AuthFailed, HostError, Unreachable
from tui.fleet.hosts import Host
from tui.fleet.prompts import NoPrompts
from tui.fleet.ssh import login
from tui.fleet.ssh.client import SshClient, SshConnection

pytestmark = pytest.mark.sshd

YES = NoPrompts(accept_new_host_key=True)


async def connect(host: Host, prompts: object = YES) -> SshConnection:
    return await SshClient().connect(host, prompts)  # type: ignore[arg-type]


async def says(connection: SshConnection, command: str) -> bytes:
    """Run a command to its end and return what it printed."""
    running = await connection.open_exec(command)
    output = b""
    while data := await running.read(65536):
        output += data
    await running.close()
    return output


async def test_a_command_and_its_end(sshd: Sshd, client_home: Path) -> None:
    connection = await connect(sshd.host())
    running = await connection.open_exec("head -c 6; printf err >&2; exit 3")
    await running.write(b"hello\n")
    assert await running.read(100) == b"hello\n"
    assert await running.read(100) == b""
    await running.wait(5)
    assert running.exit_status == 3
    assert running.stderr_tail() == b"err"
    with pytest.raises(Unreachable):
        await running.write(b"too late")
    await running.close()
    assert await says(connection, 'echo "$TERM-$SSH_AUTH_SOCK"; tty') == b"dumb-\nnot a tty\n"
    await connection.close()


async def test_much_stderr_does_not_block(sshd: Sshd, client_home: Path) -> None:
    connection = await connect(sshd.host())
    running = await connection.open_exec("head -c 5000000 /dev/zero >&2; printf end >&2; echo done")
    assert await running.read(100) == b"done\n"
    await running.wait(5)
    assert len(running.stderr_tail()) == 4096
    assert running.stderr_tail().endswith(b"end")
    await connection.close()


async def test_a_lost_connection_ends_what_is_read_from_it(sshd: Sshd, client_home: Path) -> None:
    connection = await connect(sshd.host())
    running = await connection.open_exec("cat")
    reading = asyncio.create_task(running.read(100))
    await running.write(b"x")
    assert await reading == b"x"
    assert sshd.cut() == 1
    assert await running.read(100) == b""
    with pytest.raises(Unreachable, match="was lost"):
        await running.write(b"x")
    with pytest.raises(Unreachable, match="was lost"):
        await connection.open_exec("true")
    await connection.close()


async def test_passwords_are_asked_for_and_remembered(
    run_sshd: Callable[..., Sshd], client_home: Path
) -> None:
    sshd = run_sshd(password=True)
    person = Person(passwords=("wrong", PASSWORD))
    client = SshClient()
    await (await client.connect(sshd.host(), person)).close()
    prompt = ("box", f"root@127.0.0.1:{sshd.port}'s password: ")
    assert person.prompts == [prompt, prompt]
    await (await client.connect(sshd.host(), person)).close()
    assert person.prompts == [prompt, prompt]
    assert not [path for path in client_home.rglob("*") if path.is_file() and PASSWORD in path.read_text()]


async def test_nobody_to_ask_for_a_password(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    sshd = run_sshd(password=True)
    with pytest.raises(AuthFailed, match="does not let root in") as failed:
        await connect(sshd.host())
    assert "password" in failed.value.hint
    assert not failed.value.retryable
    with pytest.raises(AuthFailed, match="a password"):
        await connect(sshd.host(), Person(passwords=("a", "b", "c", PASSWORD)))


async def test_a_person_may_take_longer_than_a_host_may(
    run_sshd: Callable[..., Sshd], client_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LOGIN_SECONDS", 1.0)
    sshd = run_sshd(password=True)

    class Slow(Person):
        async def password(self, host: Host, prompt: str) -> str | None:
            await asyncio.sleep(1.2)
            return await super().password(host, prompt)

    await (await connect(sshd.host(), Slow(passwords=(PASSWORD,)))).close()


def encrypted_key(path: Path, sshd: Sshd, *options: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *options, "-N", "open sesame", "-f", path], check=True)
    with (sshd.home / ".ssh" / "authorized_keys").open("a") as authorized:
        authorized.write(path.with_name(path.name + ".pub").read_text())


@pytest.mark.parametrize("form", ["new", "old, public half missing"])
async def test_passphrases(sshd: Sshd, client_home: Path, form: str) -> None:
    key = client_home / "key"
    encrypted_key(
        key, sshd, *(("-t", "ed25519") if form == "new" else ("-t", "rsa", "-b", "2048", "-m", "PEM"))
    )
    if form != "new":
        (client_home / "key.pub").unlink()
    host = sshd.host(identity_files=(str(key),))
    client = SshClient()
    person = Person(passphrases=("wrong", "open sesame"))
    await (await client.connect(host, person)).close()
    assert person.paths == [str(key)] * 2
    await (await client.connect(host, person)).close()
    assert person.paths == [str(key)] * 2
    with pytest.raises(AuthFailed, match="~/key stayed locked") as failed:
        await connect(host)
    assert failed.value.hint == "Unlock the key with: ssh-add ~/key"


async def test_forty_connections_ask_once_for_a_passphrase(sshd: Sshd, client_home: Path) -> None:
    encrypted_key(client_home / "key", sshd, "-t", "ed25519")
    person = Person(passphrases=("open sesame",))
    client = SshClient()
    host = sshd.host(identity_files=(str(client_home / "key"),))
    connections = await asyncio.gather(*(client.connect(host, person) for _ in range(10)))
    assert len(person.paths) == 1
    assert len(person.keys) == 1
    await asyncio.gather(*(connection.close() for connection in connections))


async def test_a_slow_person_keeps_nobody_else_waiting(sshd: Sshd, client_home: Path) -> None:
    encrypted_key(client_home / "key", sshd, "-t", "ed25519")

    class Slow(Person):
        def __init__(self) -> None:
            super().__init__()
            self.answer = asyncio.Event()

        async def passphrase(self, host: Host, path: str) -> str | None:
            self.paths.append(path)
            await self.answer.wait()
            return "open sesame"

    client, person = SshClient(), Slow()
    host = sshd.host(identity_files=(str(client_home / "key"),))
    waiting = [asyncio.ensure_future(client.connect(host, person)) for _ in range(20)]
    await eventually(lambda: person.paths)
    await (await asyncio.wait_for(client.connect(sshd.host(), person), 10)).close()
    person.answer.set()
    for connection in await asyncio.gather(*waiting):
        await connection.close()
    assert len(person.paths) == 1


async def test_a_key_is_unlocked_before_a_password_is_asked_for(
    run_sshd: Callable[..., Sshd], client_home: Path
) -> None:
    sshd = run_sshd(config="PasswordAuthentication yes")
    encrypted_key(client_home / "key", sshd, "-t", "ed25519")
    host = sshd.host(identity_files=(str(client_home / "key"),))
    person = Person(passphrases=("open sesame",), passwords=(PASSWORD,))
    await (await connect(host, person)).close()
    assert person.prompts == []
    person = Person(passphrases=(None,), passwords=(PASSWORD,))
    await (await connect(host, person)).close()
    assert len(person.paths) == len(person.prompts) == 1


async def test_a_locked_key_does_not_stand_in_the_way_of_others(sshd: Sshd, client_home: Path) -> None:
    encrypted_key(client_home / "key", sshd, "-t", "ed25519")
    host = sshd.host(identity_files=(str(client_home / "key"), str(sshd.key)))
    await (await connect(host)).close()


async def test_the_wrong_key(sshd: Sshd, client_home: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", client_home / "other"], check=True)
    (client_home / "rubbish").write_text("no key")
    host = sshd.host(identity_files=("~/other", "~/rubbish", "~/nowhere"))
    with pytest.raises(AuthFailed) as failed:
        await connect(host)
    assert failed.value.message == (
        f"127.0.0.1:{sshd.port} does not let root in; tried ~/other. ~/rubbish is no key that can be used. "
        "~/nowhere does not exist."
    )
    assert "-i KEY" in failed.value.hint


async def test_no_key_at_all(sshd: Sshd, client_home: Path) -> None:
    with pytest.raises(AuthFailed, match="there is no key to try"):
        await connect(sshd.host(identity_files=()))


async def test_default_keys_and_the_configuration(sshd: Sshd, client_home: Path) -> None:
    default = client_home / ".ssh" / "id_ed25519"
    default.write_bytes(sshd.key.read_bytes())
    default.chmod(0o600)
    await (await connect(Host("box", "127.0.0.1", sshd.port, "root"))).close()
    default.rename(client_home / ".ssh" / "mine")
    (client_home / ".ssh" / "config").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n  IdentityFile ~/.ssh/mine\n"
        "  RequestTTY force\n  RemoteCommand false\n  ForwardAgent yes\n  UnknownOption x\n"
    )
    connection = await connect(Host("box", "gpu"))
    assert connection.address == f"root@127.0.0.1:{sshd.port}"
    assert await says(connection, "tty") == b"not a tty\n"
    await connection.close()
    (client_home / ".ssh" / "config").write_text("Host *\n  Port many\n")
    with pytest.raises(HostError, match=r"ssh configuration.*line 2"):
        await connect(Host("box", "gpu"))


async def test_ssh_agent(sshd: Sshd, client_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = client_home / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        await eventually(socket.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        with pytest.raises(AuthFailed, match="tried ssh-agent"):
            await connect(sshd.host(identity_files=()))
        subprocess.run(["ssh-add", "-q", sshd.key], check=True)
        await (await connect(sshd.host(identity_files=()))).close()
        # The key itself may be locked when the agent has it.
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "locked", "-f", sshd.key], check=True)
        await (await connect(sshd.host(identities_only=True))).close()
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", client_home / "other"], check=True
        )
        with pytest.raises(AuthFailed, match="tried ~/other"):
            await connect(sshd.host(identity_files=("~/other",), identities_only=True))
    finally:
        agent.kill()
        agent.wait()


async def test_too_many_keys(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    sshd = run_sshd(config="MaxAuthTries 2")
    for number in range(4):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", client_home / f"k{number}"], check=True
        )
    with pytest.raises(AuthFailed, match="too many keys") as failed:
        await connect(sshd.host(identity_files=("~/k0", "~/k1", "~/k2", "~/k3")))
    assert "IdentitiesOnly" in failed.value.hint


async def test_refused_and_unknown_names(client_home: Path) -> None:
    port = closed_port()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port} refuses connections") as failed:
        await connect(Host("box", "127.0.0.1", port))
    assert failed.value.retryable
    with pytest.raises(Unreachable, match=r"no-such-name.invalid cannot be resolved"):
        await connect(Host("box", "no-such-name.invalid"))


async def test_a_port_that_never_speaks(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "TCP_SECONDS", 0.2)
    monkeypatch.setattr(login, "LOGIN_SECONDS", 0.3)
    async with port_that_says(b"", then_close=False) as port:
        with pytest.raises(Unreachable, match="did not finish the login within"):
            await connect(Host("box", "127.0.0.1", port))


async def test_an_address_that_does_not_answer(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full drops what comes: the nearest to a firewall that loopback has."""
    monkeypatch.setattr(login, "TCP_SECONDS", 0.3)
    import socket

    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port} did not answer within"):
            await connect(Host("box", "127.0.0.1", port))


async def test_a_port_that_is_no_sshd(client_home: Path) -> None:
    async with port_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200, then_close=True) as port:
        with pytest.raises(HostError, match=r"does not speak SSH|closed the connection"):
            await connect(Host("box", "127.0.0.1", port))


async def test_lost_before_the_login_is_tried_again(sshd: Sshd, client_home: Path) -> None:
    async with link_to(sshd.port) as link:
        link.cut_after = 100
        with pytest.raises(Unreachable, match="closed the connection before the login"):
            await connect(sshd.host(port=link.port))
        assert link.connections == 3

        async def mend() -> None:
            await eventually(lambda: link.connections >= 4)
            link.cut_after = None

        mending = asyncio.create_task(mend())
        await (await connect(sshd.host(port=link.port))).close()
        await mending
        assert link.connections >= 5


async def test_through_a_bastion(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    bastion, inner = run_sshd(), run_sshd()
    (client_home / ".ssh" / "config").write_text(
        f"Host *\n  IdentityFile {bastion.key}\n  IdentityFile {inner.key}\n  User root\n"
        f"Host jump\n  HostName localhost\n  Port {bastion.port}\n"
    )
    person = Person()
    connection = await connect(inner.host(identity_files=(), proxy_jump="jump"), person)
    assert await says(connection, 'echo "$SSH_CONNECTION"') != b""
    assert bastion.connections() == inner.connections() == 1
    assert person.keys == [
        ("jump", "ssh-ed25519", bastion.fingerprint()),
        ("box", "ssh-ed25519", inner.fingerprint()),
    ]
    await connection.close()
    with pytest.raises(Unreachable, match=r"(?i)the bastion cannot reach"):
        await connect(Host("box", "127.0.0.1", closed_port(), proxy_jump="jump"), person)
    with pytest.raises(HostError, match="bastions"):
        await connect(Host("box", "h", proxy_jump=",".join(["jump"] * 12)), person)


async def test_forty_at_once_with_the_usual_limits(sshd: Sshd, client_home: Path) -> None:
    """sshd's default MaxStartups turns away some of so many; all get in."""
    client = SshClient()
    host = sshd.host()
    connections = await asyncio.gather(*(client.connect(host, YES) for _ in range(40)))
    assert {await says(connection, "echo in") for connection in connections} == {b"in\n"}
    await asyncio.gather(*(connection.close() for connection in connections))


async def test_too_many_sessions(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    sshd = run_sshd(config="MaxSessions 1")
    connection = await connect(sshd.host())
    first = await connection.open_exec("cat")
    with pytest.raises(HostError, match="runs no commands"):
        await connection.open_exec("true")
    await first.close()
    await connection.close()


async def test_closing_is_bounded_when_the_host_hangs(sshd: Sshd, client_home: Path) -> None:
    connection = await connect(sshd.host())
    await connection.open_exec("cat")
    thaw = sshd.freeze()
    try:
        await asyncio.wait_for(connection.close(), 5)
    finally:
        thaw()


async def test_a_proxy_command(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    outer, inner = run_sshd(), run_sshd()
    config = client_home / ".ssh" / "config"
    config.write_text(
        f"Host box\n  HostName 127.0.0.1\n  ProxyCommand {' '.join(outer.command('-W', '%h:%p'))}\n"
    )
    connection = await connect(dataclasses.replace(inner.host(), hostname="box"))
    assert await says(connection, "echo in") == b"in\n"
    assert outer.connections() == 1
    await connection.close()
    config.write_text("Host box\n  ProxyCommand echo rubbish\n")
    with pytest.raises(HostError, match="box"):
        await connect(dataclasses.replace(inner.host(), hostname="box"))
    config.write_text("Host box\n  ProxyCommand /nowhere/at/all\n")
    with pytest.raises(HostError, match="ProxyCommand for box"):
        await connect(dataclasses.replace(inner.host(), hostname="box", port=22))


async def test_ipv6(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    sshd = run_sshd(config="ListenAddress ::1")
    host = dataclasses.replace(sshd.host(), hostname="::1")
    try:
        connection = await connect(host)
    except Unreachable:
        pytest.skip("this machine has no IPv6 loopback")
    assert connection.address == f"root@[::1]:{sshd.port}"
    await connection.close()
    assert (client_home / "state" / "known_hosts").read_text().startswith(f"[::1]:{sshd.port} ")
