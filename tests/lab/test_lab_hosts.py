"""What a lab host can be like."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

import pytest

from .lab import Lab
from .machine import CHECKOUT, interpreter
from .tools import Impossible, refuse

pytestmark = pytest.mark.sshd


def oldest_python() -> str:
    """The oldest version that the agent runs under and that is on this machine; ours if there is no other."""
    for minor in range(8, sys.version_info[1]):
        try:
            interpreter(f"3.{minor}", refuse)
        except Impossible:
            continue
        return f"3.{minor}"
    return f"3.{sys.version_info[1]}"


def test_a_host_has_its_own_processes_name_home_and_folders(lab: Lab) -> None:
    a, b = lab.up(2)
    a.run("touch ~/here /tmp/here /var/tmp/here /dev/shm/here")
    assert b.run("ls ~/here /tmp/here /var/tmp/here /dev/shm/here 2>/dev/null", check=False).stdout == ""
    assert (a.home / "here").exists()
    assert a.inside("cat", "/proc/1/comm") == "sshd\n"
    assert a.inside("cat", "/proc/sys/kernel/random/boot_id").strip() == a.boot_id != b.boot_id
    assert a.inside("ls", str(CHECKOUT)).strip() in ("", ".venv")
    assert a.inside(sys.executable, "-c", "import sys; print(sys.prefix)") == f"{sys.prefix}\n"
    assert a.inside("getent", "ahostsv4", "h1").split()[0] == a.address


def test_small_shared_memory_and_a_home_without_programs(lab: Lab) -> None:
    host = lab.add(shm="16m", noexec_home=True)
    assert host.inside("df", "--output=size", "-B1M", "/dev/shm").split() == ["1M-blocks", "16"]
    assert host.run("cp /bin/true ~ && ~/true", check=False).returncode == 126
    assert host.run("cp /bin/true /var/tmp && /var/tmp/true").returncode == 0


def test_noise_comes_before_what_a_command_says(lab: Lab) -> None:
    host = lab.add(noise="vast")
    said = host.run("pwd")
    assert said.stdout.splitlines()[-1] == "/root/workspace"
    assert "Have fun!" in said.stdout.splitlines()[0]
    shown = subprocess.run(
        [*host.ssh_command("-o", "LogLevel=INFO"), "true"], capture_output=True, text=True, check=True
    )
    assert "Welcome to vast.ai" in shown.stderr


def test_sftp_can_be_missing(lab: Lab) -> None:
    with_it, without = lab.add(), lab.add(sftp=False)
    for host, code in ((with_it, 0), (without, 255)):
        command = ["sftp", "-b", "-", *host.ssh_command()[1:]]
        command[command.index("-p")] = "-P"
        done = subprocess.run(command, input="ls\n", capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (code == 0), done.stderr


def test_python3_is_the_version_asked_for(lab: Lab) -> None:
    version = oldest_python()
    host = lab.add(python=version)
    answer = host.run("python3 -c 'import ssl, sys; print(sys.version)'; /usr/bin/python3 -V").stdout
    assert answer.startswith(version)
    assert f"Python {version}" in answer


def test_what_the_host_may_use_is_limited_and_the_agent_sees_it(lab: Lab) -> None:
    host = lab.add(cpus=0.5, pids=40, memory="128m")
    package = host.home / "agent"
    package.mkdir()
    for name in ("__init__", "cgroup", "procfile"):
        shutil.copy(CHECKOUT / "agent" / f"{name}.py", package)
    code = "from agent.cgroup import Cgroups as C; c = C(); print(c.cpu.limit, c.pids.limit, c.memory.limit)"
    assert host.run(f"/usr/bin/python3 -c '{code}'").stdout == f"0.5 40 {128 * 1024**2}\n"
    forked = host.run("exec sh -c 'for i in $(seq 60); do sleep 1 > /dev/null 2>&1 & done'", check=False)
    assert "Cannot fork" in forked.stderr


def test_a_clock_can_be_wrong(lab: Lab) -> None:
    host = lab.add(clock_offset=-3600.0)
    for command in ("date +%s.%N", "python3 -c 'import time; print(time.time())'"):
        assert abs(float(host.run(command).stdout) - (time.time() - 3600)) < 5


@pytest.mark.parametrize(("resolves", "address"), [("loopback", "127.0.1.1"), ("nothing", "")])
def test_a_hosts_name_can_mean_the_wrong_thing(lab: Lab, resolves: str, address: str) -> None:
    host = lab.add(resolves=resolves)
    assert host.inside("sh", "-c", "getent ahostsv4 h1 | cut -d' ' -f1 | uniq").strip() == address


def test_a_limit_outlives_a_reboot(lab: Lab) -> None:
    host = lab.add(pids=50)
    host.reboot()
    found = host.run("cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null", check=False)
    assert found.stdout == "50\n"
