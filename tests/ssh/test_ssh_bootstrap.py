"""Getting the real agent to run over a real sshd: noise, odd logins, full disks, cut lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from ssh.faults import link_to
from ssh.sshd import Sshd

from agent import bundle, wire
from tui.fleet import bootstrap
from tui.fleet.bootstrap import start_agent, why_ended
from tui.fleet.channel import AgentChannel
from tui.fleet.errors import HostUnfit, Unreachable
from tui.fleet.hosts import Host
from tui.fleet.prompts import NoPrompts
from tui.fleet.ssh.client import ExecChannel, SshClient, SshConnection
from tui.fleet.ssh.server import end_processes_of

pytestmark = pytest.mark.sshd

NOISE = "printf 'Welcome to vast.ai. Have fun!'\necho on stderr >&2\n"


@pytest.fixture(scope="module")
def agent() -> bundle.Bundle:
    return bundle.build()


class Login:
    """A connection that counts its commands, and the agent behind it."""

    def __init__(self, connection: SshConnection, host: Host, agent: bundle.Bundle) -> None:
        self.connection = connection
        self.host = host
        self.agent = agent
        self.commands = 0
        self.installs = 0
        self.command: ExecChannel | None = None

    async def open_exec(self, command: str) -> ExecChannel:
        self.commands += 1
        self.command = await self.connection.open_exec(command)
        return self.command

    def _installs(self) -> None:
        self.installs += 1

    async def hello(self) -> wire.Hello:
        """Start the agent's relay, take the first message, and close it again."""
        started = await start_agent(self, self.host, self.agent, on_install=self._installs)
        channel = AgentChannel(started.command, started.head)
        try:
            async for message in channel:
                assert isinstance(message, wire.Hello)
                return message
            raise AssertionError(await why_ended(started.command, self.host))
        finally:
            await channel.close()


@pytest.fixture
async def log_in(client_home: Path, agent: bundle.Bundle) -> AsyncIterator[Callable[..., object]]:
    """Log in on a server; `**fields` are those of its Host."""
    logins: list[Login] = []

    async def log_in(sshd: Sshd, **fields: object) -> Login:
        host = sshd.host(**fields)  # type: ignore[arg-type]
        connection = await SshClient().connect(host, NoPrompts(accept_new_host_key=True))
        logins.append(Login(connection, host, agent))
        return logins[-1]

    yield log_in
    for login in logins:
        await login.connection.close()


async def test_cold_and_warm_take_one_command_each(sshd: Sshd, log_in, agent: bundle.Bundle) -> None:
    login = await log_in(sshd)
    first = await login.hello()
    assert (login.commands, login.installs) == (1, 1)
    assert (first.build, first.home) == (agent.sha256, sshd.environment)
    again = await login.hello()
    assert (login.commands, login.installs) == (2, 1)
    assert again.host_id == first.host_id
    assert again.pid == first.pid


@pytest.mark.parametrize("shell", ["/bin/dash", "/usr/bin/zsh", "/usr/bin/fish", "/usr/bin/tcsh"])
async def test_other_login_shells(run_sshd: Callable[..., Sshd], log_in, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"{shell} is not installed")
    login = await log_in(run_sshd(shell=shell))
    await login.hello()
    await login.hello()
    assert (login.commands, login.installs) == (2, 1)


@pytest.mark.parametrize(
    "bashrc",
    [
        NOISE,
        NOISE + "head -c 300000 /dev/zero | tr '\\0' x\n",
        '[ -z "$TMUX" ] && { tmux attach || tmux new; }\n',
        "set -x\ncd /tmp\nexport PS1=x\nalias sh=false\nread line < /dev/null\n",
        'echo "running: $SSH_ORIGINAL_COMMAND $BASH_EXECUTION_STRING"\n',
    ],
    ids=["banner", "much", "tmux", "settings", "echo"],
)
async def test_what_a_profile_does_is_ignored(run_sshd: Callable[..., Sshd], log_in, bashrc: str) -> None:
    login = await log_in(run_sshd(bashrc=bashrc, banner="Welcome!\n", config="AllowTcpForwarding no"))
    await login.hello()
    await login.hello()
    assert (login.commands, login.installs) == (2, 1)


async def test_a_profile_that_never_ends(
    run_sshd: Callable[..., Sshd], log_in, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = await log_in(run_sshd(bashrc="yes fun\n"))
    with pytest.raises(HostUnfit, match="prints without end instead of running our command: fun"):
        await login.hello()
    assert login.command is not None
    monkeypatch.setattr(bootstrap, "START_SECONDS", 0.5)
    login = await log_in(run_sshd(bashrc="echo loading modules; sleep 60\n"))
    with pytest.raises(HostUnfit, match=r"not get to our command within .*: loading modules"):
        await login.hello()


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"authorized_options": 'command="echo Error: Your SSH client does not support PTY; exit 1"'},
            "box wants a terminal and runs no commands without: Error: Your SSH client does not support PTY",
            "SSH over exposed TCP",
        ),
        (
            {"bashrc": "exec tmux new\n"},
            "box wants a terminal and runs no commands without: open terminal failed: not a terminal",
            "tmux",
        ),
        (
            {"shell": "/usr/sbin/nologin"},
            "The login on box ended with exit code 1 before the agent started; it said: This account",
            "by hand",
        ),
        (
            {"authorized_options": 'command="echo refused: $SSH_ORIGINAL_COMMAND"'},
            "The login on box ended with exit code 0 before the agent started; it said: refused: exec sh -c",
            "by hand",
        ),
    ],
    ids=["runpod", "tmux", "nologin", "forced command"],
)
async def test_a_login_that_is_for_other_things(
    run_sshd: Callable[..., Sshd], log_in, options: dict[str, str], message: str, hint: str
) -> None:
    login = await log_in(run_sshd(**options))
    with pytest.raises(HostUnfit) as unfit:
        await login.hello()
    assert unfit.value.message.startswith(message)
    assert hint in unfit.value.hint
    assert login.commands <= 2


async def test_a_damaged_agent_is_replaced(sshd: Sshd, log_in, agent: bundle.Bundle) -> None:
    login = await log_in(sshd)
    await login.hello()
    file = sshd.home / ".encamp" / "agent" / f"{agent.sha256}.pyz"
    for content in (b"", agent.data[:1000]):
        file.write_bytes(content)
        await login.hello()
        assert file.read_bytes() == agent.data
    assert (login.commands, login.installs) == (1 + 2 * 2, 3)


async def test_no_python(sshd: Sshd, log_in, tmp_path: Path) -> None:
    login = await log_in(sshd, python="/nowhere/python3")
    with pytest.raises(HostUnfit, match=r"box has no Python 3.8 or newer\.") as unfit:
        await login.hello()
    assert 'python = "/path" under [hosts.box]' in unfit.value.hint
    for name, code in (("old", 97), ("broken", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    login = await log_in(sshd, python=f"{tmp_path}/old")
    with pytest.raises(HostUnfit, match=f"newer: {tmp_path}/old is older"):
        await login.hello()
    login = await log_in(sshd, python=f"{tmp_path}/broken")
    with pytest.raises(HostUnfit, match=f"newer: {tmp_path}/broken does not run"):
        await login.hello()


async def test_a_full_disk(run_sshd: Callable[..., Sshd], log_in) -> None:
    sshd = run_sshd(mounts=((".encamp", "size=16k"),))
    login = await log_in(sshd, home="~/.encamp")
    with pytest.raises(HostUnfit, match=f"The disk of box is full: {sshd.home}/.encamp has no room") as unfit:
        await login.hello()
    assert 'home = "/path" under [hosts.box]' in unfit.value.hint
    check = await login.connection.open_exec("ls -A .encamp/agent")
    assert await check.read(1000) == b""
    # When nobody says where, the next place does.
    assert (await (await log_in(sshd)).hello()).home == "/var/tmp/encamp-0"


async def test_noexec_does_not_matter(run_sshd: Callable[..., Sshd], log_in) -> None:
    sshd = run_sshd(mounts=((".encamp", "noexec"),))
    assert (await (await log_in(sshd)).hello()).home == sshd.environment


async def test_a_read_only_home(run_sshd: Callable[..., Sshd], log_in) -> None:
    sshd = run_sshd(mounts=((".", "ro"),), keys_elsewhere=True)
    login = await log_in(sshd, home="~/.encamp")
    with pytest.raises(HostUnfit, match=r"no place for the agent on box: .*Read-only file system"):
        await login.hello()
    assert (await (await log_in(sshd)).hello()).home == "/var/tmp/encamp-0"


async def test_a_user_without_rights(run_sshd: Callable[..., Sshd], log_in) -> None:
    sshd = run_sshd(uid=61234)
    login = await log_in(sshd)
    hello = await login.hello()
    assert (hello.user, hello.home) == ("camper", sshd.environment)
    (sshd.home / "closed").mkdir(mode=0o755)
    login = await log_in(sshd, home="~/closed/home")
    with pytest.raises(HostUnfit, match=f"no place .* on box: {sshd.home}/closed/home: Permission denied"):
        await login.hello()


async def test_a_line_cut_in_the_middle_of_the_upload(sshd: Sshd, log_in, agent: bundle.Bundle) -> None:
    async with link_to(sshd.port) as link:
        login = await log_in(sshd, port=link.port)
        link.cut_after = 20_000
        with pytest.raises(Unreachable):
            await login.hello()
        assert link.cuts
        folder = sshd.home / ".encamp"
        assert not folder.exists() or not list(folder.rglob("*.p*"))
        link.cut_after = None
        login = await log_in(sshd, port=link.port)
        assert (await login.hello()).build == agent.sha256


async def test_an_agent_that_cannot_start_says_why(sshd: Sshd, log_in) -> None:
    login = await log_in(sshd)
    await login.hello()
    end_processes_of(sshd.home)
    (sshd.home / ".encamp" / "agent.lock").unlink()
    (sshd.home / ".encamp" / "agent.lock").mkdir()
    started = await start_agent(login, login.host, login.agent)
    assert [message async for message in AgentChannel(started.command, started.head)] == []
    error = await why_ended(started.command, login.host)
    assert isinstance(error, HostUnfit)
    assert error.message.startswith("The agent on box does not start: ")
    assert "irectory" in error.message


async def test_several_at_once_on_a_new_host(sshd: Sshd, log_in) -> None:
    """Whoever comes first installs and starts it; all talk to the same daemon."""
    logins = await asyncio.gather(*(log_in(sshd) for _ in range(6)))
    hellos = await asyncio.gather(*(login.hello() for login in logins))
    assert len({hello.pid for hello in hellos}) == 1
    assert len(list((sshd.home / ".encamp" / "agent").iterdir())) == 1
