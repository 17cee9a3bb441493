"""Attempts for tests: real supervisors and shims around a stand-in for torchrun, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import wait_until

from agent import control, files, instance, paths, prepare, process, reap, wire
from agent.attempt import Attempt, Condition
from agent.launch import Command

SCRIPTS = Path(__file__).parent.parent / "scripts"


def order(spec: wire.LaunchSpec, actor: str = "ann", **more: Any) -> prepare.Order:
    """What a viewer asks for."""
    return prepare.Order(spec, actor, **more)


def launch(home: str, spec: wire.LaunchSpec, actor: str = "ann", **more: Any) -> prepare.Started:
    """Launch as the daemon does, on a host without GPUs."""
    return control.launch(home, order(spec, actor, **more), prepare.Hardware())


def restart(home: str, run: str, actor: str) -> prepare.Started:
    """Start the next attempt as the daemon does."""
    return control.launch(home, control.next_order(home, run, actor), prepare.Hardware())


def plan(home: str, spec: wire.LaunchSpec) -> prepare.Started:
    """What a launch would start."""
    return prepare.plan(home, order(spec), prepare.Hardware())


class Lab:
    """Makes attempts under one home and ends all of their processes when it is closed."""

    def __init__(self, home: str, folder: Path, python: str = sys.executable) -> None:
        self.home = home
        self.folder = folder
        self.python = python
        """Runs supervisor, launcher and ranks."""
        self.attempts: list[Attempt] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def spec(self, run: str = "run-1", *words: str, grace: float = 20.0, nproc: int = 2) -> wire.LaunchSpec:
        return wire.LaunchSpec(
            run, "a run", "test", "ddp", "script", str(SCRIPTS / "behave.py"), words, str(self.folder), nproc,
            stop_grace_seconds=grace,
        )  # fmt: skip

    def create(self, *words: str, grace: float = 20.0, nproc: int = 2, launcher: str = "") -> Attempt:
        """An attempt that is ready to be started: ranks of behave.py that do what `words` say."""
        spec = self.spec(f"run-{len(self.attempts)}", *words, grace=grace, nproc=nproc)
        folder = paths.attempt_dir(self.home, spec.run, 1)
        shim = f"{folder}/rank.py"
        stand_in = launcher or str(SCRIPTS / "launcher.py")
        argv = (self.python, stand_in, str(nproc), shim, "script", spec.target, *spec.args)
        env = {
            "ENCAMP_HOME": self.home,
            "ENCAMP_RUN": spec.run,
            "ENCAMP_ATTEMPT": "1",
            "ENCAMP_ATTEMPT_DIR": folder,
        }
        command = Command(argv, env, spec.cwd, self.python, nproc, nproc, 1, "torchrun")
        attempt = prepare.create(self.home, spec, 1, command)
        self.attempts.append(attempt)
        return attempt

    def start(self, *words: str, grace: float = 20.0, nproc: int = 2) -> Attempt:
        """An attempt under a supervisor."""
        attempt = self.create(*words, grace=grace, nproc=nproc)
        self.supervise(attempt)
        return attempt

    def supervise(self, attempt: Attempt, *options: str) -> subprocess.Popen[bytes]:
        """Start a supervisor under our Python, as a child, and wait until its launcher has been started."""
        command = [self.python, *instance.agent_command("supervise", *options, attempt.dir)[1:]]
        supervisor = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        self._started.append(supervisor)
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        return supervisor

    def running(self, *words: str, grace: float = 20.0, nproc: int = 2) -> Attempt:
        """An attempt whose ranks have all begun."""
        attempt = self.start(*words, grace=grace, nproc=nproc)
        wait_until(lambda: attempt.condition().state == "running", message="all ranks are registered")
        return attempt

    def close(self) -> None:
        """End everything that was started, also after a failed test."""
        for supervisor in self._started:
            supervisor.kill()
            supervisor.communicate()
        for attempt in self.attempts:
            _end(attempt)


def _end(attempt: Attempt) -> None:
    tree, supervisor = reap.Tree(attempt.dir, attempt.resolved().get("env", {})), attempt.supervisor()
    wait_until(lambda: not _kill(tree, supervisor), message="all processes are gone")


def _kill(tree: reap.Tree, supervisor: tuple[int, int] | None) -> dict[int, int]:
    members = tree.members()
    if supervisor and process.alive(*supervisor):
        members[supervisor[0]] = supervisor[1]
    reap.send(members, signal.SIGKILL)
    return members


def ended(attempt: Attempt, timeout: float = 20.0) -> Condition:
    """Wait for the end of an attempt."""
    wait_until(lambda: attempt.condition().over, timeout, "the attempt is over")
    return attempt.condition()


def log(attempt: Attempt, stream: str) -> str:
    path = Path(attempt.dir) / f"{stream}.log"
    return path.read_text() if path.exists() else ""


def events(attempt: Attempt) -> list[tuple[object, object]]:
    """What was done to an attempt and what happened to it: names and actors, oldest first."""
    records, _ = files.read_json_lines(f"{attempt.dir}/events.jsonl")
    return [(record["name"], record["actor"]) for record in records]
