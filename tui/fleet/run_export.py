"""Lets the host of a run write the weights of one of its checkpoints to one file, in the run's own folder.

The run's own trainer does it, in the Python that the run has: nothing is installed, and nothing is sent.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .agent_command import NOISE_BYTES
from .errors import EncampError, RequestRefused, Unreachable
from .host_files import HostFile, HostFiles, Nonsense
from .sanitize import printable

FOLDER = "exports"
"""Where the file is in the run's folder, until it has been fetched."""

END_SECONDS = 10.0
"""How long a command that has closed its output may take to end."""

MAX_SPEC = 1024 * 1024

COMPLETE = re.compile(r"checkpoints/step-([0-9]{1,15})/complete\.json\Z")
HASH = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Written:
    """The file on the host, of which step it is, and how many tensors and numbers are in it."""

    path: str
    step: int
    tensors: int
    parameters: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Trainer:
    """What exports: the Python of the run, and the folders with the trainer's code."""

    python: str
    code: tuple[str, ...]
    checkpoints: str
    """The folder of checkpoints that the profile names, if it does: absolute, or from the user's home on."""


def newest(files: Iterable[HostFile]) -> int | None:
    """The step of the newest complete checkpoint among the files of a run."""
    matches = (COMPLETE.match(file.path) for file in files)
    return max((int(match[1]) for match in matches if match), default=None)


def checkpoint_dir(args: Sequence[str], cwd: str) -> str:
    """The folder that the trainer's `args` name for checkpoints, seen from anywhere; empty without one."""
    flag, named = "--checkpoint-dir", ""
    for word, following in zip(args, (*args[1:], ""), strict=False):
        if word == flag:
            named = following
        elif word.startswith(f"{flag}="):
            named = word.partition("=")[2]
    return named if named.startswith("~") or not named else posixpath.join(cwd, named)


class RunExport:
    """Exports on one host. Raises HostError, RequestRefused, and EncampError with what the trainer says."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._session = host.session

    async def own_folder(self) -> str:
        """Where the run keeps its checkpoints instead of in its own folder; empty when it does not."""
        return (await self._trainer()).checkpoints

    async def write(self, step: int | None, ending: str, checkpoints: str = "") -> Written:
        """Export the checkpoint of that step, None for the newest; `ending` says as what.

        `checkpoints` is the folder, when not that of the run.
        """
        trainer = await self._trainer()
        folder = posixpath.join(self._home(), "runs", self._host.run)
        checkpoints = checkpoints or f"{folder}/checkpoints"
        path = f"{FOLDER}/step-{'newest' if step is None else step}{ending}"
        command = [
            *("env", f"PYTHONPATH={':'.join(trainer.code)}", trainer.python, "-m", "trainer.export"),
            *(checkpoints if step is None else str(step), "--checkpoint-dir", checkpoints),
            *("--to", f"{folder}/{path}", "--force", "--json"),
        ]
        said = await self._run(f"mkdir -p {shlex.quote(f'{folder}/{FOLDER}')} && {shlex.join(command)}")
        try:
            told = json.loads(said.strip().rpartition(b"\n")[2])
            left_out = tuple(printable(str(name)[:300]) for name in told["left_out"])
            counts = int(told["step"]), int(told["tensors"]), int(told["parameters"])
            return Written(path, *counts, left_out)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Nonsense(self._session) from None

    async def remove(self, path: str) -> None:
        """Remove the file on the host, once it has been fetched."""
        await self._run(f"rm -f {shlex.quote(posixpath.join(self._home(), 'runs', self._host.run, path))}")

    async def _trainer(self) -> _Trainer:
        """That of the newest attempt on this host."""
        _, entries = await self._host.entries("attempts")
        attempts = [int(name) for name, kind, _ in entries if kind == "folder" and name.isdigit()]
        if not attempts:
            raise RequestRefused("no-file", f"{self._session.name} has no attempt of {self._host.run}.")
        path = f"attempts/{max(attempts)}/spec.json"
        size = (await self._host.entries(path))[1][0][2]
        await self._host.piece()
        data = await self._host.read(path, 0, min(size, MAX_SPEC))
        try:
            spec: dict[str, Any] = json.loads(data)
            kind = str(spec["target_kind"])
            hashes = [str(reference["sha256"]) for reference in spec["code"]]
            named = checkpoint_dir([str(word) for word in spec["args"]], str(spec["resolved"]["cwd"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Nonsense(self._session) from None
        if kind != "task":
            raise EncampError(
                f"{self._host.run} runs a {printable(kind)} of yours, whose checkpoints only you know.",
                f"Fetch them as they are: encamp get {self._host.run} checkpoints",
            )
        view = self._session.view.runs.get(self._host.run)
        python = view.info.python if view is not None else ""
        if not all(map(HASH.match, hashes)) or not python.startswith("/"):
            raise Nonsense(self._session)
        code = tuple(posixpath.join(self._home(), "code", sha256) for sha256 in hashes)
        return _Trainer(python, code, named)

    async def _run(self, command: str) -> bytes:
        channel = await self._session.open_bulk(command)
        said = b""
        try:
            while data := await channel.read(4096):
                said = (said + data)[-NOISE_BYTES:]
            await channel.wait(END_SECONDS)
            status, problem = channel.exit_status, channel.stderr_tail()
        finally:
            await channel.close()
        if status is None:
            raise Unreachable(f"The connection to {self._session.name} was lost while it exported.")
        if status != 0:
            raise self._failure(problem.decode("utf-8", "replace"))
        return said

    def _failure(self, problem: str) -> EncampError:
        if "No module named trainer.export" in problem:
            return EncampError(
                f"{self._host.run} was launched by an older encamp, whose trainer cannot export.",
                f"Restart the run, or fetch the checkpoint as it is: encamp get {self._host.run} checkpoints",
            )
        text = problem.strip().rpartition("trainer.export: error: ")[2]
        return EncampError(f"{self._session.name}: {printable(text.splitlines()[-1] if text else problem)}")

    def _home(self) -> str:
        hello = self._session.view.hello
        if hello is None:
            raise Unreachable(f"{self._session.name} is not connected.")
        return hello.home
