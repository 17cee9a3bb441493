"""Recipes: what each installs and how, with packages that are no real ones; what is said without tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wheels
from agent_client import AgentHost
from env_builds import Build, bare_python, run
from waiting import wait_until

from agent import env_recipes, envs, launch, paths, probe, wire
from agent.errors import RunError

TOOLS = {
    "setuptools": "80.0",
    **dict.fromkeys(("wheel", "packaging", "cloudpickle", "psutil", "pyyaml"), "1"),
}

SHARE_MEMORY = """
import os
class ShareMemCommBuilder:
    def load(self, verbose):
        assert os.environ["DS_ACCELERATOR"] == "cpu"
        print("the operator is compiled with", os.environ["MAX_JOBS"])
"""


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Packages by the names that the recipes ask for."""
    folder = tmp_path / "index"
    for name, version in {**TOOLS, "cmake": "4.1", "ninja": "1"}.items():
        wheels.wheel(folder, name, {f"{name}_pretended.py": ""}, version=version)
    wheels.wheel(folder, "horovod", {"horovod/__init__.py": "", "horovod/torch.py": "import torch"}, "0.28.1")
    operators = {f"deepspeed/{name}/__init__.py": "" for name in ("ops", "ops/op_builder")}
    operators["deepspeed/ops/op_builder/cpu.py"] = SHARE_MEMORY
    operators["deepspeed/__init__.py"] = ""
    wheels.wheel(folder, "deepspeed", operators, "0.19.8", requires=["ninja"])
    wheels.wheel(folder, "tensorflow_cpu", {"tensorflow/__init__.py": ""}, "2.21.0")
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which no compiler is found but those that a test puts into this folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "uname", "env"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, prints: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{prints}'\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def host(tools: Path, one_host: AgentHost) -> Iterator[AgentHost]:
    """The host of these tests: its torch is a pretended one."""
    return one_host


def test_horovod_is_compiled_with_its_notes_and_found_by_launches(
    host: AgentHost, index: Path, tools: Path
) -> None:
    for name in ("g++", "make"):
        program(tools, name)
    program(tools, "cmake", "cmake version 3.25.1")
    build = Build(host, (), index, recipe="horovod")
    built = build.answer()
    assert built["packages"]["horovod"] == "0.28.1", build.output
    assert "unmaintained since 2023" in build.output
    assert "cmake" not in build.output.partition("Successfully installed")[2].partition("\n")[0]
    made = json.loads((Path(built["python"]).parents[1] / envs.MARKER).read_text())
    assert (made["recipe"], made["torch"]) == ("horovod", "2.13.0+fake")
    again = Build(host, (), index, recipe="horovod")
    assert (again.answer()["fresh"], again.output) == (False, "")
    assert probe.resolve(host.home, "auto", "", ("torch", "horovod")).path == built["python"]
    spec = wire.LaunchSpec("r", "r", "p", "horovod", "module", "json.tool", nproc_per_node=2)
    assert launch.resolve(host.home, spec, 1).python == built["python"]
    (listed,) = host.connect().request("env_list")["environments"]
    assert (listed["python"], listed["recipe"], listed["state"]) == (built["python"], "horovod", "complete")
    assert listed["has"] == built["packages"]


def test_cmake_comes_from_pip_where_the_host_s_is_too_old(host: AgentHost, index: Path, tools: Path) -> None:
    for name in ("g++", "make"):
        program(tools, name)
    program(tools, "cmake", "cmake version 3.5.2")
    build = Build(host, (), index, recipe="horovod")
    assert "horovod" in build.answer()["packages"]
    assert "cmake-4.1" in build.output


def test_without_a_compiler_it_is_said_what_to_install(host: AgentHost, index: Path) -> None:
    failed = Build(host, (), index, recipe="horovod").answer()
    assert failed["code"] == "no-env"
    assert failed["message"].startswith("Horovod has to be compiled, and this host has no g++ and no make")
    assert failed["hint"] == "on Debian and Ubuntu: apt install g++ make cmake python3-dev"
    assert not [path for path in Path(paths.env_dir(host.home)).iterdir() if path.is_dir()]


def test_an_environment_for_another_torch_is_not_used(host: AgentHost, index: Path, tools: Path) -> None:
    for name in ("g++", "make", "cmake"):
        program(tools, name)
    built = Build(host, (), index, recipe="horovod").answer()
    version = Path(os.environ["PYTHONPATH"].partition(":")[0]) / "torch" / "version.py"
    version.write_text("__version__ = '2.14.0'\ncuda = None\n")
    with pytest.raises(RunError, match=r"horovod was built for torch 2.13.0\+fake, and now there is 2.14.0"):
        probe.resolve(host.home, "auto", "", ("torch", "horovod"))
    assert Build(host, (), index, recipe="horovod").answer()["python"] != built["python"]


def test_deepspeed_and_its_operator(host: AgentHost, index: Path, tools: Path) -> None:
    # The Python of these tests may have the real one.
    without = Build(host, (), index, recipe="deepspeed", python=bare_python(tools.parent / "first"))
    assert without.answer()["packages"]["deepspeed"] == "0.19.8"
    assert "operator for CPUs is left out, as this host has no g++" in without.output
    program(tools, "g++")
    build = Build(host, (), index, recipe="deepspeed", python=bare_python(tools.parent / "second"))
    assert build.answer()["packages"]["deepspeed"] == "0.19.8"
    assert "the operator is compiled with " in build.output


def test_tensorflow_needs_no_torch(host: AgentHost, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    built = Build(host, (), index, recipe="tensorflow", python=bare_python(index.parent)).answer()
    assert (built["torch"], built["packages"]) == (None, {"tensorflow": "2.21.0"})
    named = probe.resolve(host.home, built["python"], "", ("tensorflow",))
    assert named.path == built["python"]


def test_two_at_once_share_one_build(host: AgentHost, index: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (index / "tensorflow_cpu-2.21.0-py3-none-any.whl").unlink()
    wheels.waiting_package(index, "tensorflow_cpu", gate)
    first = Build(host, (), index, recipe="tensorflow")
    wait_until(Path(f"{gate}.reached").exists, 30, "pip builds the package")
    (listed,) = host.connect().request("env_list")["environments"]
    assert listed["state"] == "not complete"
    second = Build(host, (), index, recipe="tensorflow")
    while not second.joined:
        second.next()
    assert probe.candidates("", host.home) == probe.candidates(""), "half of one is not used"
    gate.touch()
    failures = [first.answer(), second.answer()]
    assert {failed["code"] for failed in failures} == {"no-env"}, "this one has no module tensorflow"
    assert "tensorflow cannot be imported: " in failures[0]["message"]


def test_an_unknown_recipe_is_refused(host: AgentHost, index: Path) -> None:
    failed = Build(host, (), index, recipe="mxnet").answer()
    assert (failed["code"], failed["hint"]) == ("bad-spec", "there are deepspeed, horovod, tensorflow")


def test_a_host_without_a_network_is_told_apart(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    build = Build(host, (), None, recipe="tensorflow", pip_args=("--index-url", "http://127.0.0.1:9/simple"))
    failed = build.answer()
    assert failed["message"].startswith("this host does not reach what pip downloads from: pip failed: ERROR")
    assert "PIP_INDEX_URL" in failed["hint"]


def test_the_compiler_gets_the_standard_that_torch_s_headers_need(tmp_path: Path) -> None:
    real = tmp_path / "g++"
    real.write_text(f"#!{sys.executable}\nimport sys; print(sys.argv[1:])\n")
    real.chmod(0o755)
    wrapper = tmp_path / "c++"
    wrapper.write_text(env_recipes.COMPILER.format(standard="gnu++20", compiler=real))
    wrapper.chmod(0o755)
    words = ["-std=c++11", "-c", "a file.cc", "-DX='y'", "-std=gnu++14"]
    said = subprocess.run([wrapper, *words], check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(["-std=gnu++20", "-c", "a file.cc", "-DX='y'", "-std=gnu++20", "-w", "-g0"])


def test_each_torch_gets_its_standard() -> None:
    for text, release in (("2.13.0+cpu", (2, 13)), ("2.9.1", (2, 9)), ("", ())):
        assert env_recipes._release(text) == release
    assert run(sys.executable, "print(1)") == "1"
