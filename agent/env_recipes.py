"""Environments that a list of packages does not describe: what a strategy needs and how it gets here.

A recipe runs inside the build of an environment (`env_builder`), which gives it the environment with pip in
it, and takes all of it away again when a step fails.
"""

from __future__ import annotations

import os
import shutil
from typing import Callable, Dict, List, NamedTuple, Tuple

from . import probe
from .errors import RunError

HOROVOD = "horovod==0.28.1"

HOROVOD_NOTE = (
    "Note: Horovod has been unmaintained since 2023. It is compiled for this torch all the same, which takes "
    "minutes. Choose ddp unless you have a script that needs it."
)

CMAKE = (3, 13)
"""The oldest that Horovod takes."""

CXX20 = (2, 13)
"""The oldest torch whose headers need C++20; older ones need C++17."""

JOB_BYTES = 1536 * 1024 * 1024
"""Memory of one compiler that reads torch's headers."""

INSTALL_TOOLS = "on Debian and Ubuntu: apt install g++ make cmake python3-dev"

COMPILER = """#!/bin/sh
# Horovod asks for a C++ that the headers of its torch are too new for: ask for theirs.
for word do
  shift
  case $word in -std=*) word=-std={standard} ;; esac
  set -- "$@" "$word"
done
exec {compiler} "$@" -w -g0
"""


class Kit(NamedTuple):
    """What a recipe works with."""

    base: probe.Interpreter
    python: str
    """The environment's."""
    install: Tuple[str, ...]
    """What begins a command by which pip installs into it."""
    temporary: str
    """A folder that is gone when the build has ended. Programs in it can be run."""
    step: Callable[[List[str], str, str, Dict[str, str]], None]
    """Runs one program: words, what to say when it failed, a hint, more variables. Raises RunError."""
    say: Callable[[str], None]


class Recipe(NamedTuple):
    """One kind of environment."""

    packages: Tuple[str, ...]
    build: Callable[[Kit], None]
    """Builds it. Raises RunError, OSError."""
    torch: bool = True
    """Whether what it is made from has to have torch."""
    proof: str = ""
    """What has to be importable in the end."""
    compiles: bool = False
    """Whether it cannot be where programs may not be run."""


def find(name: str) -> Recipe:
    """The recipe of that name. Raises RunError `bad-spec`."""
    if name not in RECIPES:
        raise RunError("bad-spec", f"there is no recipe {name[:80]!r}", f"there are {', '.join(RECIPES)}")
    return RECIPES[name]


def deepspeed(kit: Kit) -> None:
    """DeepSpeed, and its operator for CPUs: ranks that compile it all at once can break each other's."""
    kit.step([*kit.install, *RECIPES["deepspeed"].packages], "pip failed", "", {})
    if kit.base.cuda is not None:
        return
    lacking = _lacking(kit, ("g++",))
    if lacking:
        kit.say(f"Note: DeepSpeed's operator for CPUs is left out, as this host has no {', '.join(lacking)}")
        return
    kit.say("Compiling DeepSpeed's operator for CPUs")
    code = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"
    environment = {"DS_ACCELERATOR": "cpu", "MAX_JOBS": str(_jobs())}
    kit.step([kit.python, "-c", code], "DeepSpeed's operator for CPUs cannot be compiled", "", environment)


def horovod(kit: Kit) -> None:
    """Horovod for torch, over gloo: for torch from 2.1 on its sources cannot be compiled as they are."""
    kit.say(HOROVOD_NOTE)
    lacking = _lacking(kit, ("g++", "make"))
    if lacking:
        raise RunError(
            "no-env",
            f"Horovod has to be compiled, and this host has no {' and no '.join(lacking)}",
            INSTALL_TOOLS,
        )
    tools = ["setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml"]
    if _version("cmake") < CMAKE:
        tools.append("cmake")
    kit.step([*kit.install, *tools], "pip failed", "", {})
    wrapper = os.path.join(kit.temporary, "c++")
    standard = "gnu++20" if _release(kit.base.torch or "") >= CXX20 else "gnu++17"
    with open(wrapper, "w", encoding="ascii") as file:
        file.write(COMPILER.format(standard=standard, compiler=shutil.which("g++") or "g++"))
    os.chmod(wrapper, 0o755)
    environment = {
        "CXX": wrapper,
        "MAKEFLAGS": f"-j{_jobs()}",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # cmake 4 has forgotten what the bundled gloo asks for
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    words = [*kit.install, "-v", "--no-build-isolation", "--no-cache-dir", *RECIPES["horovod"].packages]
    kit.step(words, "Horovod cannot be compiled", "", environment)


def tensorflow(kit: Kit) -> None:
    """TensorFlow: the build for CPUs where there is no GPU, which is half as large."""
    if os.path.exists("/proc/driver/nvidia/version") or kit.base.cuda is not None:
        packages = ["tensorflow[and-cuda]"]
    else:
        packages = list(RECIPES["tensorflow"].packages)
    kit.step([*kit.install, *packages], "pip failed", "", {})


RECIPES = {
    "deepspeed": Recipe(("deepspeed>=0.19.5", "ninja"), deepspeed, proof="deepspeed"),
    "horovod": Recipe((HOROVOD,), horovod, proof="horovod.torch", compiles=True),
    "tensorflow": Recipe(("tensorflow-cpu",), tensorflow, torch=False, proof="tensorflow"),
}
"""Name -> recipe. The name is also that of the package that a strategy needs."""


def _lacking(kit: Kit, programs: Tuple[str, ...]) -> List[str]:
    """Which of `programs` this host has not, and Python's headers if there are none."""
    found = [name for name in programs if shutil.which(name) is None]
    code = "import os, sysconfig; print(os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))"
    if probe.output_of([kit.python, "-c", code]).strip() != "True":
        found.append(f"headers of Python {kit.base.version}")
    return found


def _version(program: str) -> Tuple[int, ...]:
    """(3, 25) for `cmake version 3.25.1`; () when there is none."""
    path = shutil.which(program)
    return _release(probe.output_of([path, "--version"]).replace(program, "")) if path else ()


def _release(text: str) -> Tuple[int, ...]:
    """The first two numbers of a version in `text`."""
    words = "".join(
        character if character.isdigit() or character == "." else " " for character in text
    ).split()
    return tuple(int(part) for part in (words[0].split(".") if words else []) if part)[:2]


def _jobs() -> int:
    """How many compilers may run at once: as many as there are cores, and memory for."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = JOB_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), free // JOB_BYTES))
