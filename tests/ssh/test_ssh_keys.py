"""Trust on first use against real servers: asked once, refused when it changes, and users' files obeyed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.faults import Person
from ssh.sshd import Sshd

from tui.fleet.errors import HostKeyChanged, HostKeyUnknown
from tui.fleet.hosts import Host
from tui.fleet.prompts import NoPrompts
from tui.fleet.ssh.client import SshClient, forget_key

pytestmark = pytest.mark.sshd


async def connect(host: Host, prompts: object) -> None:
    await (await SshClient().connect(host, prompts)).close()  # type: ignore[arg-type]


def public_key(sshd: Sshd) -> str:
    """Algorithm and key, as ssh-keyscan prints them."""
    scan = subprocess.run(
        ["ssh-keyscan", "-p", str(sshd.port), "127.0.0.1"], check=True, capture_output=True, text=True
    )
    return " ".join(scan.stdout.split()[-2:])


async def test_asked_once_with_the_fingerprint_of_ssh_keygen(sshd: Sshd, client_home: Path) -> None:
    person = Person()
    await connect(sshd.host(), person)
    await connect(sshd.host("again"), person)
    assert person.keys == [("box", "ssh-ed25519", sshd.fingerprint())]
    known = client_home / "state" / "known_hosts"
    assert known.stat().st_mode & 0o777 == 0o600
    # OpenSSH itself believes what we wrote.
    ssh, *options = sshd.command()
    strictly = ["-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}"]
    subprocess.run([ssh, *strictly, *options, "true"], check=True)


async def test_nobody_accepts(sshd: Sshd, client_home: Path) -> None:
    for prompts in (Person(accept=False), NoPrompts()):
        with pytest.raises(HostKeyUnknown) as unknown:
            await connect(sshd.host(), prompts)
        assert sshd.fingerprint() in unknown.value.message
        assert "--accept-new-host-key" in unknown.value.hint
        assert not unknown.value.retryable
    assert not (client_home / "state" / "known_hosts").exists()


@pytest.mark.parametrize("other_type", [False, True])
async def test_a_changed_key_is_refused_until_it_is_forgotten(
    sshd: Sshd, client_home: Path, other_type: bool
) -> None:
    await connect(sshd.host(), Person())
    before = sshd.fingerprint()
    sshd.stop()
    sshd.new_host_key("ecdsa" if other_type else "ed25519")
    sshd.start()
    person = Person()
    with pytest.raises(HostKeyChanged) as changed:
        await connect(sshd.host(), person)
    assert before in changed.value.message
    assert sshd.fingerprint() in changed.value.message
    assert "encamp hosts forget-key box" in changed.value.hint
    assert not changed.value.retryable
    assert person.keys == []
    with pytest.raises(HostKeyChanged):
        await connect(sshd.host(), NoPrompts(accept_new_host_key=True))
    assert forget_key(sshd.host()) == 1
    assert forget_key(sshd.host()) == 0
    await connect(sshd.host(), person)
    assert [fingerprint for _, _, fingerprint in person.keys] == [sshd.fingerprint()]


async def test_keys_of_the_user_are_believed_and_never_touched(sshd: Sshd, client_home: Path) -> None:
    known = client_home / ".ssh" / "known_hosts"
    person = Person()
    known.write_text(f"broken\n@marker-of-the-future x y\n[127.0.0.1]:{sshd.port} {public_key(sshd)}\n")
    await connect(sshd.host(), person)
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(sshd)}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    text = known.read_text()
    assert "127.0.0.1" not in text
    await connect(sshd.host(), person)
    assert person.keys == []
    sshd.stop()
    sshd.new_host_key()
    sshd.start()
    with pytest.raises(HostKeyChanged) as changed:
        await connect(sshd.host(), person)
    command = re.search(r"ssh-keygen -R '\S+'", changed.value.hint)
    assert command
    assert forget_key(sshd.host()) == 0
    assert known.read_text() == text
    subprocess.run([*command.group().replace("'", "").split(), "-f", known], check=True, capture_output=True)
    await connect(sshd.host(), person)


async def test_another_port_of_the_address_is_another_machine(
    run_sshd: Callable[..., Sshd], client_home: Path
) -> None:
    first, second = run_sshd(), run_sshd()
    (client_home / ".ssh" / "known_hosts").write_text(f"127.0.0.1 {public_key(first)}\n")
    person = Person()
    await connect(first.host("first"), person)
    await connect(second.host("second"), person)
    assert [name for name, _, _ in person.keys] == ["first", "second"]
    await connect(first.host(), person)
    assert len(person.keys) == 2


async def test_revoked_keys_are_refused(sshd: Sshd, client_home: Path) -> None:
    (client_home / ".ssh" / "known_hosts").write_text(f"@revoked * {public_key(sshd)}\n")
    person = Person()
    with pytest.raises(HostKeyChanged, match="revoked"):
        await connect(sshd.host(), person)
    assert person.keys == []


@pytest.mark.parametrize("trusted", [True, False])
async def test_host_certificates(sshd: Sshd, client_home: Path, trusted: bool) -> None:
    """A trusted authority vouches for the host; with another one, the plain key is asked about."""
    authority = sshd.folder / "ca"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", authority], check=True)
    sshd.certify(authority, "127.0.0.1")
    if trusted:
        public = authority.with_suffix(".pub").read_text()
        (client_home / ".ssh" / "known_hosts").write_text(f"@cert-authority 127.0.0.* {public}")
    person = Person()
    await connect(sshd.host(), person)
    assert len(person.keys) == (0 if trusted else 1)


async def test_an_alias_for_the_key(sshd: Sshd, client_home: Path) -> None:
    (client_home / ".ssh" / "config").write_text("Host *\n  HostKeyAlias Machine-7\n")
    await connect(sshd.host(), Person())
    assert (client_home / "state" / "known_hosts").read_text().startswith("machine-7 ssh-ed25519 ")
    assert forget_key(sshd.host()) == 1


async def test_the_key_of_a_bastion(run_sshd: Callable[..., Sshd], client_home: Path) -> None:
    bastion, inner = run_sshd(), run_sshd()
    (client_home / ".ssh" / "config").write_text(
        f"Host jump\n  HostName 127.0.0.1\n  IdentityFile {bastion.key}\n"
    )
    host = inner.host(proxy_jump=f"root@jump:{bastion.port}")
    person = Person()
    await connect(host, person)
    assert [name for name, _, _ in person.keys] == ["jump", "box"]
    bastion.stop()
    bastion.new_host_key()
    bastion.start()
    with pytest.raises(HostKeyChanged) as changed:
        await connect(host, person)
    command = re.search(r"ssh-keygen -R '(\S+)' -f (\S+known_hosts)", changed.value.hint)
    assert command
    assert command[1] == f"[127.0.0.1]:{bastion.port}"
    subprocess.run(["ssh-keygen", "-R", command[1], "-f", command[2]], check=True, capture_output=True)
    await connect(host, person)
    assert [name for name, _, _ in person.keys] == ["jump", "box", "jump"]
