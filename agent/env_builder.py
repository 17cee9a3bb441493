"""The build of one virtual environment, a process of its own: `env_build` starts it and follows its output.

The environment is made in its place, whole once its marker is there; whatever else is found in that place is
removed first. What the interpreter can import can be imported in it, through a `.pth` file: an interpreter
that belongs to a virtual environment itself would not pass its packages on by any option of `venv`. Nothing
is ever written to the interpreter's own packages.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Dict, List, Optional, Tuple

from . import env_recipes, environment, envs, files, paths, probe, wire
from .errors import RunError

BUILD_SECONDS = 2 * 3600.0
"""How long one step may take: packages that are compiled take their time."""

MAX_LOG = 64 * 1024 * 1024
"""Bytes of output after which a build has lost its mind."""

NEARLY_FULL = 1024 * 1024
"""Free bytes below which a failure is put down to the disk."""

MAX_TAIL = 64 * 1024
"""Bytes of output that are looked at for why a step failed."""

LAST_LINES = 3
"""Of the output, in the message of a failure."""

ASK = f"""
import json, os, site, sys
folders = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
folders += site.getsitepackages()
try:
    from importlib.metadata import version
    torch = version("torch")
except Exception:
    torch = None
answer = {{"folders": [folder for folder in folders if os.path.isdir(folder)], "torch": torch}}
sys.stdout.flush()
os.write(1, ("\\n{probe.MARK}" + json.dumps(answer) + "\\n").encode())
"""

_VENV = "on Debian and Ubuntu: apt install python3-venv python3-pip"

_NO_NETWORK = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "Network is unreachable")
"""Words of pip when it cannot connect."""

_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PYTHONUSERBASE")
"""Variables by which pip would write somewhere else."""


def main(home: str) -> int:
    """Build what stdin says: an interpreter and an EnvSetup, in JSON. Stdout is the log, and the lock."""
    base, setup = json.load(sys.stdin)
    return Builder(home, probe.Interpreter(**base), wire.from_json(wire.EnvSetup, setup)).run()


class Builder:
    """One build, whose output is stdout."""

    def __init__(self, home: str, base: probe.Interpreter, setup: wire.EnvSetup) -> None:
        self._home = home
        self._base = base
        self._setup = setup
        self._name = envs.env_hash(base, setup)
        self._folder = paths.env_dir(home, self._name)
        self._python = os.path.join(self._folder, "bin", "python")
        self._temporary = os.path.join(self._folder, "tmp")
        """Pip's, so that a build that is killed leaves nothing elsewhere."""

    def run(self) -> int:
        """Build it, or remove what there is of it and write down why."""
        failure = paths.env_failure(self._home, self._name)
        if os.path.exists(failure):
            os.unlink(failure)
        try:
            envs.remove(self._folder)
            envs.sweep(self._home)
            self._build()
            return 0
        except (RunError, OSError) as error:
            said = as_failure(error)
            envs.remove(self._folder)
            files.write_json(failure, said)
            _say(
                f"The environment is not built: {said['message'].partition(': ERROR')[0]}"
            )  # pip's are above
            return 1

    def _build(self) -> None:
        started = time.time()
        base = self._base
        torch = f"torch {base.torch}" if base.torch else "no torch"
        _say(f"A virtual environment on {base.path} (Python {base.version}, {torch})")
        noexec = os.statvfs(self._home).f_flag & os.ST_NOEXEC
        if noexec:
            _say(f"Note: {self._home} is mounted noexec; packages with compiled parts cannot be loaded there")
        recipe = env_recipes.find(self._setup.recipe) if self._setup.recipe else None
        if recipe is not None and recipe.compiles and noexec:
            raise RunError(
                "no-env",
                f"{self._home} is mounted noexec: what is compiled there cannot be loaded",
                "set home in hosts.toml to a folder on another file system",
            )
        found = _ask(base.path)
        self._step([base.path, "-m", "venv", "--without-pip", self._folder], "the module venv failed", _VENV)
        site = self._inherit(found.get("folders"))
        if not noexec:  # what is compiled is also run
            os.mkdir(self._temporary)
        if self._setup.packages or self._setup.pip_args or recipe is not None:
            self._install(found.get("torch"), recipe)
        self._verify(site, recipe)
        shutil.rmtree(self._temporary, ignore_errors=True)
        marker = {
            "base": base.path,
            "packages": self._setup.packages,
            "recipe": self._setup.recipe,
            "torch": base.torch if recipe is not None and recipe.compiles else None,
            "built": time.time(),
            "seconds": round(time.time() - started, 1),
        }
        files.write_json(os.path.join(self._folder, envs.MARKER), marker)
        _say(f"Built in {time.time() - started:.0f} s")

    def _inherit(self, folders: object) -> str:
        """Let the environment import what the interpreter can; returns its own folder of packages."""
        site = glob.glob(os.path.join(glob.escape(self._folder), "lib", "*", "site-packages"))[0]
        names = [str(folder) for folder in folders] if isinstance(folders, list) else []
        line = f"import site; list(map(site.addsitedir, {names!a}))\n"
        files.write_bytes(os.path.join(site, "encamp_base.pth"), line.encode("ascii"), 0o644)
        return site

    def _install(self, torch: object, recipe: Optional[env_recipes.Recipe]) -> None:
        constraints = os.path.join(self._folder, "constraints.txt")
        kept = torch or self._base.torch
        line = f"torch=={kept}\n" if kept and not envs.names_torch(self._setup) else ""
        files.write_bytes(constraints, line.encode())
        install = (*self._pip(), "install", "-c", constraints, *self._setup.pip_args)
        if recipe is not None:
            kit = env_recipes.Kit(self._base, self._python, install, self._temporary, self._step, _say)
            recipe.build(kit)
        if self._setup.packages:
            self._step([*install, *self._setup.packages], "pip failed", "see [env_setup] in the profile")

    def _pip(self) -> List[str]:
        """The interpreter's own pip, or one that is made. Raises RunError."""
        pip = [self._python, "-m", "pip"]
        if self._quietly(*pip, "--version") or self._quietly(self._python, "-m", "ensurepip"):
            return pip
        for place in (shutil.which("uv"), "~/.local/bin/uv", "~/.cargo/bin/uv"):
            uv = os.path.expanduser(place or "")
            if uv and self._quietly(uv, "pip", "install", "--python", self._python, "pip"):
                return pip
        raise RunError("no-env", f"{self._base.path} has no pip, and none can be made here", _VENV)

    def _verify(self, site: str, recipe: Optional[env_recipes.Recipe]) -> None:
        """Raises RunError unless the torch that is meant can be imported, and what a recipe promises."""
        if recipe is not None:
            code = f"import {recipe.proof}"
            self._step([self._python, "-c", code], f"{recipe.proof} cannot be imported", "", {})
            if not recipe.torch:
                return
        ours = self._base.torch and not envs.names_torch(self._setup)
        if ours and os.path.isdir(os.path.join(site, "torch")):
            raise RunError(
                "no-env",
                f"pip does not see torch {self._base.torch} and would put another one in its place",
                "name torch in the packages of [env_setup] if you want that, or set --no-deps in pip_args",
            )
        found = probe.inspect(self._home, self._python)
        if found.torch is None:
            why = found.error or "there is none"
            raise RunError("no-env", f"torch cannot be imported in the environment: {why}", "see [env_setup]")

    def _step(
        self, words: List[str], failed: str, hint: str = "", more: Optional[Dict[str, str]] = None
    ) -> None:
        """Run one program, with `more` variables. Raises RunError, with the last that was said."""
        start = os.fstat(1).st_size
        code, why = self._run(words, more or {})
        if code == 0 and not why:
            return
        log = paths.env_log(self._home, self._name)
        with open(log, "rb") as file:
            file.seek(max(start, os.fstat(1).st_size - MAX_TAIL))
            text = file.read(MAX_TAIL).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if is_full(self._home) or any(_speaks_of_space(line) for line in lines[-50:]):
            raise no_space()
        if not why and code == -signal.SIGKILL:
            why = "it was killed, probably for want of memory"
        if any(word in line for line in lines for word in _NO_NETWORK):
            failed = f"this host does not reach what pip downloads from: {failed}"
            hint = "set PIP_INDEX_URL or HTTPS_PROXY on the host to an index or a proxy that it reaches"
        errors = [line for line in lines if line.startswith(("ERROR:", "error:"))] or lines
        why = why or "; ".join(errors[-LAST_LINES:])[-1500:] or f"it ended with code {code}"
        all_of_it = f"all it said is in {log} on the host"
        raise RunError("no-env", f"{failed}: {why}", f"{hint}; {all_of_it}" if hint else all_of_it)

    def _run(self, words: List[str], more: Dict[str, str]) -> Tuple[int, str]:
        """The exit code, and why it was ended, if it was."""
        child = subprocess.Popen(
            words,
            cwd=self._home,
            env={**self._environment(), **more},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + BUILD_SECONDS
        while True:
            try:
                return child.wait(1.0), ""
            except subprocess.TimeoutExpired:
                why = ""
                if time.monotonic() > deadline:
                    why = f"it took more than {BUILD_SECONDS / 3600:.0f} hours"
                elif os.fstat(1).st_size > MAX_LOG:
                    why = f"it said more than {MAX_LOG >> 20} MB"
                if why:
                    os.killpg(child.pid, signal.SIGKILL)
                    return child.wait(), why

    def _quietly(self, *words: str) -> bool:
        """Whether a program that may fail succeeds."""
        try:
            return (
                subprocess.run(
                    words,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=probe.IMPORT_SECONDS,
                    check=False,
                ).returncode
                == 0
            )
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _environment(self) -> Dict[str, str]:
        inherited = {name: value for name, value in environment.inherited().items() if name not in _ELSEWHERE}
        bin_dir = os.path.dirname(self._python)
        temporary = {"TMPDIR": self._temporary} if os.path.isdir(self._temporary) else {}
        return {
            **temporary,
            **inherited,
            "ENCAMP_HOME": self._home,  # tells whose it is
            "PATH": f"{bin_dir}:{inherited.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": self._folder,
            "PIP_USER": "0",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PYTHONUNBUFFERED": "1",
        }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _ask(python: str) -> Dict[str, object]:
    """What `ASK` finds out. Raises RunError."""
    try:
        said = subprocess.run(
            [python, "-c", ASK],
            cwd="/",
            env=environment.inherited(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=probe.IMPORT_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        said = b""
    for line in said.decode("utf-8", "replace").splitlines():
        if line.startswith(probe.MARK):
            answer: Dict[str, object] = json.loads(line[len(probe.MARK) :])
            return answer
    raise RunError("no-env", f"{python} does not say where its packages are", "try another interpreter")


def is_full(home: str) -> bool:
    """Whether the disk is to blame for about anything."""
    status = os.statvfs(home)
    return status.f_bavail * status.f_frsize < NEARLY_FULL


def _speaks_of_space(line: str) -> bool:
    return "No space left on device" in line or "Disk quota exceeded" in line


def as_failure(error: Exception) -> Dict[str, str]:
    """What is told of it: `code`, `message`, `hint`."""
    if isinstance(error, RunError):
        return {"code": error.code, "message": error.message, "hint": error.hint}
    if isinstance(error, OSError):
        if error.errno in files.NO_SPACE:
            return as_failure(no_space())
        return {
            "code": "io",
            "message": f"the host refused it: {error.strerror}: {error.filename}",
            "hint": "",
        }
    return {"code": "bad-request", "message": str(error), "hint": ""}


def no_space() -> RunError:
    """The refusal for want of space."""
    return RunError(
        "no-space",
        "no space is left on this host for the environment; what there was of it is removed",
        "make room in the folders of encamp and of temporary files, then launch again",
    )
