"""Virtual environments on a host: built by the agent as it is shipped, from packages on this disk alone."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wheels
from agent_client import NONCE, AgentHost, gone, kill
from env_builds import PIP, Build, bare_python, run
from waiting import wait_until

from agent import envs, files, launch, paths, probe, process, wire
from agent.errors import RunError

Ask = Callable[..., Build]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder of packages."""
    folder = tmp_path / "index"
    wheels.wheel(folder, "tinypkg", {"tinypkg.py": "WORD = 'tiny'\n"}, requires=["filelock"])
    wheels.wheel(folder, "filelock", {"filelock.py": ""})
    return folder


@pytest.fixture
def ask(one_host: AgentHost, index: Path) -> Iterator[Ask]:
    """Asks for an environment on a host whose torch is a pretended one."""
    asked: list[Build] = []

    def start(*packages: str, **fields: Any) -> Build:
        asked.append(Build(one_host, packages, index, **fields))
        return asked[-1]

    yield start
    for build in asked:
        kill(build.relay.pid)
        build.leave()


def folders(host: AgentHost) -> list[str]:
    return [path.name for path in Path(paths.env_dir(host.home)).iterdir() if path.is_dir()]


def builders(host: AgentHost) -> dict[int, list[str]]:
    """Processes of builds in this home, and their words; not those of who asked."""
    home = f"ENCAMP_HOME={host.home}".encode()
    found = {}
    for pid in process.pids():
        if home in process.environ(pid) and not gone(pid):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if NONCE not in words:
                found[pid] = words
    return found


@pytest.mark.slow
@pytest.mark.torch
def test_the_image_s_torch_is_seen_and_its_packages_are_left_alone(tmp_path: Path, index: Path) -> None:
    host = AgentHost(str(tmp_path / "home"))
    wheels.wheel(index, "needstorch", {"needstorch.py": "import torch\n"}, requires=["torch>=2.0"])
    (site,) = Path(sys.prefix, "lib").glob("python*/site-packages")
    before = sorted(path.name for path in site.iterdir())
    build = Build(host, ("needstorch", "tinypkg"), index)
    built = build.answer()
    assert built["python"].startswith(f"{host.home}/envs/"), build.output
    assert built["fresh"] is True
    assert "Successfully installed" in build.output
    where = "import needstorch, tinypkg, torch; print(torch.__file__, tinypkg.__file__)"
    torch, tinypkg = run(built["python"], where).split()
    assert (Path(torch).parents[1], built["torch"]) == (
        site,
        run(sys.executable, "import torch; print(torch.__version__)"),
    )
    assert tinypkg.startswith(f"{host.home}/envs/")
    assert sorted(path.name for path in site.iterdir()) == before
    again = Build(host, ("needstorch", "tinypkg"), index)
    assert again.answer() == {**built, "fresh": False}
    assert again.output == ""


@pytest.mark.slow
def test_every_python_can_be_built_upon(index: Path, one_host: AgentHost, python: str) -> None:
    built = Build(one_host, ("tinypkg",), index, python=python).answer()
    assert run(built["python"], "import tinypkg, torch; print(tinypkg.WORD, torch.__version__)") == (
        "tiny 2.13.0+fake"
    )
    assert envs.base_of(one_host.home, built["python"]) == python
    upon = Build(one_host, ("tinypkg",), index, python=built["python"]).answer()
    assert upon["python"] == built["python"], "an environment of ours stands for what it is made from"


def test_what_a_broken_build_left_is_removed(host: AgentHost, index: Path) -> None:
    built = Build(host, ("tinypkg",), index).answer()
    folder = Path(built["python"]).parents[1]
    (folder / envs.MARKER).unlink()
    (folder / "left").write_text("by somebody")
    assert Build(host, ("tinypkg",), index).answer() == built
    assert not (folder / "left").exists()


def test_two_at_once_share_one_build(tmp_path: Path, one_host: AgentHost, ask: Ask, index: Path) -> None:
    gate = tmp_path / "gate"
    wheels.waiting_package(index, "slowpkg", gate)
    first = ask("slowpkg")
    wait_until(Path(f"{gate}.reached").exists, 30, "pip builds the package")
    second = ask("slowpkg")
    while not second.joined:
        second.next()
    gate.touch()
    built = first.answer()
    assert second.answer()["python"] == built["python"]
    assert (first.joined, second.joined) == (False, True)
    assert first.output == second.output
    assert first.output.count("Built in") == 1


def test_a_build_goes_on_without_who_asked(
    tmp_path: Path, one_host: AgentHost, ask: Ask, index: Path
) -> None:
    gate = tmp_path / "gate"
    wheels.waiting_package(index, "slowpkg", gate)
    first = ask("slowpkg")
    heard = first.next()["offset"]
    wait_until(Path(f"{gate}.reached").exists, 30, "pip builds the package")
    first.lose()
    second = ask("slowpkg", offset=heard)
    while not second.joined:
        second.next()
    second.leave()
    gate.touch()
    wait_until(lambda: not builders(one_host), 30, "the build ends")
    third = ask("slowpkg")
    assert third.answer()["fresh"] is False
    log = Path(paths.env_log(one_host.home, folders(one_host)[0])).read_text()
    assert log[heard:].startswith(second.output)
    assert "Built in" in log


def test_a_killed_build_is_built_anew(tmp_path: Path, one_host: AgentHost, ask: Ask, index: Path) -> None:
    gate = tmp_path / "gate"
    wheels.waiting_package(index, "slowpkg", gate)
    first = ask("slowpkg")
    wait_until(Path(f"{gate}.reached").exists, 30, "pip builds the package")
    for pid in builders(one_host):
        kill(pid)
    failed = first.answer()
    assert failed["code"] == "no-env"
    assert "it was killed" in failed["message"]
    gate.touch()
    assert ask("slowpkg").answer()["fresh"] is True


def test_pip_killed_for_want_of_memory(tmp_path: Path, one_host: AgentHost, ask: Ask, index: Path) -> None:
    gate = tmp_path / "gate"
    wheels.waiting_package(index, "slowpkg", gate)
    first = ask("slowpkg")
    wait_until(Path(f"{gate}.reached").exists, 30, "pip builds the package")
    for pid, words in builders(one_host).items():
        if words[1:3] == ["-m", "pip"]:
            kill(pid)
    assert "killed, probably for want of memory" in first.answer()["message"]


def test_a_failure_has_pip_s_words_and_leaves_only_the_log(one_host: AgentHost, ask: Ask) -> None:
    build = ask("nosuchpkg")
    failed = build.answer()
    assert failed["code"] == "no-env"
    assert (
        "pip failed: ERROR: Could not find a version that satisfies the requirement nosuchpkg"
        in (failed["message"])
    )
    assert folders(one_host) == []
    log = failed["hint"].partition("is in ")[2].partition(" on the host")[0]
    assert Path(log).read_text() == build.output
    assert ask("nosuchpkg").answer()["message"] == failed["message"], "it is tried again"


def test_another_torch_is_not_put_in_the_place_of_the_image_s(tmp_path: Path, ask: Ask, index: Path) -> None:
    wheels.wheel(index, "torch", {"torch/__init__.py": ""}, version="2.13.0+fake")
    wheels.wheel(index, "needstorch", {"needstorch.py": ""}, requires=["torch"])
    bare = bare_python(tmp_path)  # the pretended torch has no metadata, so pip does not see it
    failed = ask("needstorch", python=bare).answer()
    assert "would put another one in its place" in failed["message"]
    wheels.wheel(index, "torch", {"torch/__init__.py": ""}, version="3.0")
    wheels.wheel(index, "newtorch", {"newtorch.py": ""}, requires=["torch>=3"])
    failed = ask("newtorch", python=bare).answer()
    assert failed["message"].startswith("pip failed: ERROR: "), "it was told to keep the version"
    assert "torch" in failed["message"]


def test_an_image_without_torch_gets_the_one_that_is_named(tmp_path: Path, index: Path) -> None:
    version = {
        "torch/__init__.py": "from .version import __version__\n",
        "torch/version.py": "__version__ = '2'\n",
    }
    wheels.wheel(index, "torch", version, version="2.0")
    host = AgentHost(str(tmp_path / "home"))
    bare = bare_python(tmp_path)
    assert Build(host, ("tinypkg",), index, python=bare).answer()["code"] == "no-python"
    built = Build(host, ("torch==2.0",), index, python=bare).answer()
    assert built["torch"] == "2"


def test_a_python_without_pip(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = bare_python(tmp_path, pip=False)
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "ensurepip.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{shadow}:{os.environ['PYTHONPATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    failed = ask("tinypkg", python=bare).answer()
    assert "has no pip" in failed["message"]
    assert "apt install python3-venv" in failed["hint"]
    uv = tmp_path / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    pip = PIP.parent
    line = f"import sys; sys.path.append({str(pip)!r})"
    uv.write_text(
        f'#!/bin/sh\ncd "${{4%/bin/python}}"/lib/python*/site-packages && echo "{line}" > pip.pth\n'
    )
    uv.chmod(0o755)
    assert ask("tinypkg", python=bare).answer()["fresh"] is True


def test_pip_writes_nowhere_else(one_host: AgentHost, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("--user", "--target=/tmp/x", "--targ=/x", "-t", "-t/x", "--prefix", "--pref", "--root=/"):
        assert ask("tinypkg", pip_args=(option,)).answer()["code"] == "bad-spec"
    assert ask("-e .").answer()["code"] == "bad-spec"
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", f"{one_host.home}/elsewhere")
    assert run(ask("tinypkg").answer()["python"], "import tinypkg; print(tinypkg.__file__)").startswith(
        f"{one_host.home}/envs/"
    )


def test_a_full_disk(tmp_path: Path, index: Path, fake_torch: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "encamp-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk, and here not even root")
    try:
        host = AgentHost(str(disk / "home"))
        wheels.wheel(index, "hugepkg", {"hugepkg.bin": os.urandom(4_000_000)})
        failed = Build(host, ("hugepkg",), index).answer()
        assert failed["code"] == "no-space"
        assert folders(host) == []
        assert Build(host, ("tinypkg",), index).answer()["fresh"] is True
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_request_says_at_once_whether_it_is_there(one_host: AgentHost, ask: Ask) -> None:
    viewer = one_host.connect()
    build = ask("tinypkg")
    params = {"python": sys.executable, "setup": json.loads(json.dumps(wire.to_json(build.setup)))}
    built = build.answer()
    there = viewer.request("env_has", **params)
    assert there == {key: built[key] for key in ("python", "torch", "packages", "base")}
    assert viewer.request("env_has", **{**params, "setup": {"packages": ["other"]}})["python"] is None


def test_a_launch_finds_it_or_says_that_it_is_not_there(one_host: AgentHost, ask: Ask) -> None:
    other = wire.EnvSetup(("other",))
    with pytest.raises(RunError, match="is not built") as refusal:
        envs.resolve(one_host.home, sys.executable, "", other)
    assert refusal.value.code == "no-env"
    assert envs.python_of(one_host.home, sys.executable, other) is None
    build = ask("tinypkg")
    built = build.answer()
    found = envs.resolve(one_host.home, sys.executable, "", build.setup)
    spec = wire.from_json(wire.LaunchSpec, json.loads(json.dumps(one_host.spec("run-a"))))
    command = launch.resolve(one_host.home, dataclasses.replace(spec, env_setup=build.setup), 1)
    assert command.python == found.path
    bins = [os.path.dirname(path) for path in (found.path, sys.executable)]  # noqa: PTH120
    assert command.env["PATH"].split(":")[:2] == bins, "the base's commands are found too"
    assert (found.path, found.torch) == (built["python"], "2.13.0+fake")
    assert envs.python_of(one_host.home, sys.executable, build.setup) == built["python"]


@pytest.mark.parametrize("torch", ["2.13.0", None])
def test_what_is_planned_may_get_its_torch_from_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str | None
) -> None:
    python = tmp_path / "python"
    python.touch(0o700)
    monkeypatch.setattr(probe, "inspect", lambda _, path: probe.Interpreter(path, "3.11.7", torch, None))

    def plan(*packages: str, strategy: str = "ddp") -> launch.Command:
        spec = wire.LaunchSpec(
            "r-1", "r", "p", strategy, "task", "trainer", nproc_per_node=1, python=str(python),
            env_setup=wire.EnvSetup(packages),
        )  # fmt: skip
        return launch.resolve(str(tmp_path), spec, 1, planned=True)

    # Which torch it will be is known when it is there.
    assert (plan("wandb", "torch==2.9.1").python, plan("torch").torch) == (str(python), "")
    assert plan("torch", "deepspeed>=0.19", strategy="zero2").python == str(python)
    with pytest.raises(RunError, match="has no deepspeed, which strategy zero2 needs"):
        plan("torch", strategy="zero2")
    if torch is None:
        with pytest.raises(RunError, match="it has no torch"):
            plan("wandb")
    else:
        assert plan("wandb").torch == torch


def test_what_makes_another_environment(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    base = probe.Interpreter(str(program), "3.11.7", "2.13.0", None)
    setup = wire.EnvSetup(("a", "b"), ("-q",))
    names = {envs.env_hash(base, setup)}
    assert envs.env_hash(base, setup) in names
    for other in (
        envs.env_hash(base._replace(version="3.11.8"), setup),
        envs.env_hash(base._replace(torch="2.14.0"), setup),
        envs.env_hash(base, wire.EnvSetup(("a", "b", "c"), ("-q",))),
        envs.env_hash(base, wire.EnvSetup(("a", "b"))),
    ):
        names.add(other)
    program.write_text("#!/bin/sh\n# another image\n")
    names.add(envs.env_hash(base, setup))
    assert len(names) == 6


@pytest.mark.parametrize(
    ("package", "named"),
    [
        ("torch", True),
        ("Torch==2.4", True),
        ("torch[opt] >= 2", True),
        ("torch @ https://example.org/t.whl", True),
        ("https://example.org/whl/torch-2.4.0%2Bcu121-cp311-cp311-linux_x86_64.whl", True),
        ("torchvision", False),
        ("torch-geometric", False),
        ("pytorch-lightning", False),
        ("https://example.org/torch-geometric-2.whl", False),
    ],
)
def test_which_packages_are_torch(package: str, named: bool) -> None:
    assert envs.names_torch(wire.EnvSetup((package,))) is named


def test_what_was_not_used_for_long_is_removed(home: str) -> None:
    long_ago = time.time() - envs.UNUSED_SECONDS - 10
    old, used, running, broken = (character * 32 for character in "abcd")
    for name in (old, used, running, broken):
        Path(paths.env_dir(home, name), "bin").mkdir(parents=True)
        if name != broken:
            files.write_json(f"{paths.env_dir(home, name)}/{envs.MARKER}", {})
        for path in (Path(paths.env_dir(home, name), envs.MARKER), Path(paths.env_dir(home, name))):
            if path.exists() and name != used:
                os.utime(path, (long_ago, long_ago))
    program = Path(paths.env_dir(home, running), "bin", "python")
    program.symlink_to("/bin/sleep")
    os.utime(Path(paths.env_dir(home, running), envs.MARKER), (long_ago, long_ago))
    sleeper = subprocess.Popen([str(program), "60"])
    try:
        wait_until(lambda: Path(f"/proc/{sleeper.pid}/cmdline").read_bytes().startswith(bytes(program)))
        envs.sweep(home)
    finally:
        sleeper.kill()
        sleeper.wait()
    left = {path.name for path in Path(paths.env_dir(home)).iterdir() if path.is_dir()}
    assert left == {used, running}
