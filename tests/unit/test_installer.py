"""The script that finds or installs the agent, run under real shells with a stand-in for the agent."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from agent.bundle import Bundle
from tui.fleet.errors import UsageError
from tui.fleet.hosts import Host
from tui.fleet.installer import receiver, shell_command

NONCE = "0123456789abcdef0123456789abcdef"
HOST = Host("box", "h")

AGENT = b"""\
import os, sys
print(sys.argv[sys.argv.index("--nonce") + 1])
print(os.environ["ENCAMP_HOME"], "keep" if "--keep" in sys.argv else "replace", sys.version_info[:2])
print(sys.stdin.readline(), end="")
"""


def bundle_of(source: bytes) -> Bundle:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", source)
    return Bundle(buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest())


BUNDLE = bundle_of(AGENT)


class Machine:
    """A home directory and a PATH, as a login there would have them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.environment = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def run(
        self,
        host: Host = HOST,
        *,
        shell: tuple[str, ...] = ("/bin/sh",),
        data: bytes | None = None,
        bundle: Bundle = BUNDLE,
        keep: bool = False,
        fresh: bool = False,
    ) -> tuple[list[str], int]:
        """Run the script as a login shell would, with the agent on stdin; what it printed, its exit code."""
        command = shell_command(host, bundle.sha256, NONCE, keep=keep, fresh=fresh)
        given = receiver(bundle, keep=keep) + (bundle.data if data is None else data) + b"hello\n"
        done = subprocess.run(
            [*shell, "-c", command],
            input=given,
            capture_output=True,
            env=self.environment,
            cwd=self.home,
            timeout=30,
            check=False,
        )
        assert b"<string>" not in done.stderr, done.stderr.decode()  # a traceback of ours
        return done.stdout.decode().splitlines(), done.returncode

    def warm(self, home: Path, bundle: Bundle = BUNDLE) -> None:
        """Put the agent into a home as if it had run there."""
        (home / "agent").mkdir(parents=True)
        (home / "agent" / f"{bundle.sha256}.pyz").write_bytes(bundle.data)
        (home / "host.json").write_text("{}")

    def failure(self, lines: list[str]) -> dict[str, object]:
        """What the receiver reported."""
        assert lines[-1].startswith(f"{NONCE}:fail ")
        report: dict[str, object] = json.loads(lines[-1].partition(" ")[2])
        return report


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


SHELLS = ["bash", "dash", "zsh", "fish", "tcsh", "busybox sh"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_it_on(machine: Machine, shell: str) -> None:
    name, *arguments = shell.split()
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    cold, _ = machine.run(shell=(path, *arguments))
    assert cold[0] == f"{NONCE}:need"
    assert cold[1] == NONCE
    assert cold[2].startswith(f"{machine.home}/.encamp replace ")
    assert cold[3] == "hello"
    (machine.home / ".encamp" / "host.json").touch()
    warm, code = machine.run(shell=(path, *arguments), keep=True)
    assert warm[0] == NONCE
    assert warm[1].startswith(f"{machine.home}/.encamp keep ")
    assert code == 0


def test_busybox_as_sh_itself(machine: Machine) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    (machine.bin / "sh").symlink_to(busybox)
    assert machine.run()[0][:2] == [f"{NONCE}:need", NONCE]
    (machine.home / ".encamp" / "host.json").touch()
    assert machine.run()[0][0] == NONCE


def test_no_character_that_a_shell_could_take_otherwise() -> None:
    host = Host("box", "h", home="~/a b+c", python="/opt/x y/python")
    for command in (
        shell_command(HOST, "a" * 64, NONCE),
        shell_command(host, "a" * 64, NONCE, keep=True, fresh=True),
    ):
        assert command.startswith("exec sh -c '")
        script = command.removeprefix("exec sh -c '").removesuffix("'")
        assert not set(script) & set("'\\!\n")
        assert NONCE not in command
        assert "@" not in script.replace('"$@"', "")
        assert len(command) < 8192


@pytest.mark.parametrize("path", ["/a'b", "/a$(id)", "/a`id`", '/a"b', "/a\\b", "relative", "/a\n", "/é", ""])
def test_paths_that_a_shell_could_take_otherwise_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        shell_command(Host("box", "h", python=path or "x"), "a" * 64, NONCE)


def test_files_are_private_and_nothing_else_is_left(machine: Machine) -> None:
    machine.run()
    home = machine.home / ".encamp"
    assert home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (home / "agent").iterdir()] == [f"{BUNDLE.sha256}.pyz"]
    assert (home / "agent" / f"{BUNDLE.sha256}.pyz").read_bytes() == BUNDLE.data


@pytest.mark.parametrize("cut", [0, 1, len(BUNDLE.data) - 1])
def test_a_cut_upload_leaves_nothing_behind(machine: Machine, cut: int) -> None:
    command = shell_command(HOST, BUNDLE.sha256, NONCE)
    given = receiver(BUNDLE, keep=False) + BUNDLE.data[:cut]
    for data in (given, given[:20], b""):
        done = subprocess.run(
            ["sh", "-c", command],
            input=data,
            capture_output=True,
            env=machine.environment,
            timeout=30,
            check=False,
        )
        assert done.stdout.decode().splitlines() == [f"{NONCE}:need"]
    assert not (machine.home / ".encamp").exists()


def test_a_damaged_upload_is_refused(machine: Machine) -> None:
    lines, code = machine.run(data=BUNDLE.data[:-1] + b"?")
    assert machine.failure(lines) == {"damaged": True}
    assert code == 96
    assert not (machine.home / ".encamp").exists()


def test_the_home_that_was_used_before_is_kept(machine: Machine) -> None:
    machine.environment["ENCAMP_HOME"] = str(machine.home / "deep" / "down")
    assert machine.run()[0][2].startswith(str(machine.home / "deep" / "down"))
    # Once there is one, a new build goes to it as well.
    del machine.environment["ENCAMP_HOME"]
    machine.warm(machine.home / ".encamp", bundle_of(b"old"))
    lines, _ = machine.run()
    assert lines[0] == f"{NONCE}:need"
    assert lines[2].startswith(f"{machine.home}/.encamp ")


def test_the_inventory_overrules_the_host(machine: Machine) -> None:
    machine.environment["ENCAMP_HOME"] = "/nowhere/at/all"
    host = Host("box", "h", home="~/my place")
    assert machine.run(host)[0][2].startswith(f"{machine.home}/my place ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files away")
def test_a_home_of_somebody_else_is_not_trusted(machine: Machine) -> None:
    """/var/tmp is everybody's: what lies there under our name may have been put there to be run by us."""
    place = machine.home / "place"
    evil = bundle_of(b"print('evil')")
    machine.warm(place, Bundle(evil.data, BUNDLE.sha256))
    os.chown(place, 61234, 61234)
    lines, _ = machine.run(Host("box", "h", home=str(place)))
    assert "evil" not in lines
    assert machine.failure(lines) == {"errors": [[str(place), "EPERM", "it belongs to another user"]]}


def test_nowhere_to_write(machine: Machine) -> None:
    (machine.home / "file").touch()
    lines, _ = machine.run(Host("box", "h", home="~/file/home"))
    assert machine.failure(lines) == {"errors": [[f"{machine.home}/file/home", "ENOTDIR", "Not a directory"]]}


def fake_python(machine: Machine, name: str, script: str) -> Path:
    path = machine.bin / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("fault", ["exit 97", "exit 127", "kill -9 $$", "echo noise; exit 1"])
def test_a_python_that_does_not_do_is_passed_over_when_installing(machine: Machine, fault: str) -> None:
    fake_python(machine, "python3", fault)
    assert machine.run()[0][:2] == [f"{NONCE}:need", NONCE]


def test_a_python_that_is_too_old_is_passed_over_when_warm(machine: Machine) -> None:
    machine.warm(machine.home / ".encamp")
    fake_python(machine, "python3", "echo too old >&2; exit 97")
    assert machine.run()[0][0] == NONCE


def test_a_python_that_fails_when_warm_says_so_by_its_exit_code(machine: Machine) -> None:
    machine.warm(machine.home / ".encamp")
    fake_python(machine, "python3", "exit 1")
    assert machine.run() == ([], 1)
    # The second try looks at each Python first.
    assert machine.run(fresh=True)[0][:2] == [f"{NONCE}:need", NONCE]


def test_a_damaged_agent_is_replaced_by_the_second_try(machine: Machine) -> None:
    machine.warm(machine.home / ".encamp")
    (machine.home / ".encamp" / "agent" / f"{BUNDLE.sha256}.pyz").write_bytes(BUNDLE.data[:100])
    lines, code = machine.run()
    assert lines == []
    assert code not in (0, 96)
    assert machine.run(fresh=True)[0][:2] == [f"{NONCE}:need", NONCE]
    assert machine.run()[0][0] == NONCE


def test_no_python_at_all(machine: Machine) -> None:
    old = fake_python(machine, "py", "exit 97")
    lines, code = machine.run(Host("box", "h", python=str(old)))
    assert lines == [f"{NONCE}:none {old}=97"]
    assert code == 96
    lines, _ = machine.run(Host("box", "h", python="/nowhere/python3"))
    assert lines == [f"{NONCE}:none"]


VERSIONS = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))


@pytest.mark.parametrize("python", VERSIONS, ids=lambda path: path.parts[-3])
def test_real_interpreters(machine: Machine, python: Path) -> None:
    version = tuple(int(part) for part in python.parts[-3].split(".")[:2])
    lines, _ = machine.run(Host("box", "h", python=str(python)))
    if version < (3, 8):
        assert lines[0].startswith(f"{NONCE}:none {python}=")
    else:
        assert lines[2] == f"{machine.home}/.encamp replace {version}"
