"""What happens to lab hosts: lost networks, lost power, another machine in their place."""

from __future__ import annotations

import subprocess

import pytest
from waiting import wait_until

from agent import process

from .host import LabHost
from .lab import Lab

pytestmark = pytest.mark.sshd


def fingerprint(host: LabHost) -> str:
    """Of the host key that is shown at its address."""
    words = ["ssh-keyscan", "-t", "ed25519", "-p", str(host.ssh_port), host.address]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_hosts_lose_each_other_while_the_controller_sees_both(lab: Lab) -> None:
    a, b, c = lab.up(3)
    lab.cut(a, b)
    assert not a.reaches(b.address, 22)
    assert not b.reaches(a.address, 22)
    wait_until(lambda: a.reaches(c.address, 22))
    assert [host.run("hostname").stdout for host in (a, b)] == ["h1\n", "h2\n"]
    lab.mend()
    wait_until(lambda: a.reaches(b.address, 22))


def test_the_controller_loses_a_host_that_the_others_see(lab: Lab) -> None:
    a, b = lab.up(2)
    lab.cut(a)
    assert not a.reaches(lab.controller, 22)
    with pytest.raises(subprocess.TimeoutExpired):
        a.run("true", timeout=1)
    wait_until(lambda: b.reaches(a.address, 22))
    lab.mend(a)
    assert a.run("hostname").stdout == "h1\n"


def test_an_unplugged_host_goes_on_in_silence(lab: Lab) -> None:
    a, b = lab.up(2)
    a.unplug()
    assert not b.reaches(a.address, 22)
    assert a.inside("hostname") == "h1\n"
    a.plug_in()
    wait_until(lambda: b.reaches(a.address, 22))


def test_a_power_cut_ends_everything_and_says_nothing(lab: Lab) -> None:
    host = lab.add()
    command = [*host.ssh_command(), "setsid sleep 1000 & echo up; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        ran = {pid: process.start_time(pid) or 0 for pid in host.processes()}
        assert len(ran) >= 4
        host.power_cut()
        assert not any(process.alive(pid, start) for pid, start in ran.items())
        with pytest.raises(subprocess.TimeoutExpired):  # the client was told nothing
            client.wait(0.5)
        client.kill()
    host.power_on()
    assert host.run("hostname; pgrep sleep", check=False).stdout == "h1\n"


def test_a_reboot_keeps_the_home_and_the_key_and_has_another_boot_id(lab: Lab) -> None:
    host = lab.add()
    (host.home / "kept").write_text("yes")
    host.run("touch /dev/shm/lost /run/lost")
    boot, key = host.boot_id, fingerprint(host)
    host.reboot()
    assert host.run("cat ~/kept; ls -d /dev/shm/* /run/lost", check=False).stdout == "yes"
    assert host.run("cat /proc/sys/kernel/random/boot_id").stdout.strip() == host.boot_id != boot
    assert fingerprint(host) == key


def test_another_machine_takes_the_address(lab: Lab) -> None:
    host = lab.add()
    (host.home / "lost").write_text("")
    address, boot, key = host.address, host.boot_id, fingerprint(host)
    host.replace()
    assert host.address == address
    assert host.boot_id != boot
    assert host.run("ls").stdout == ""
    assert fingerprint(host) not in ("", key)
