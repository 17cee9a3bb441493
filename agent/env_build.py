"""`build-env`: follows the build of a virtual environment, and starts it when there is none.

The build (`env_builder`) is a process in a session of its own that writes to a log, so it goes on when the
connection of whoever asked for it breaks; who asks again, or at the same time, follows the same build.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
import select
import subprocess
import sys
from typing import Dict, List

from . import env_builder, env_recipes, envs, files, instance, paths, probe, wire
from .errors import RunError

MAX_REQUEST = 64 * 1024
PIECE = 16 * 1024
JOIN_BYTES = 64 * 1024
"""How much of what was said before a build is joined is told."""

LOOK_SECONDS = 0.1

NOT_OURS = ("--user", "--target", "--prefix", "--root", "--python")
"""Options of pip by which it would write somewhere else."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is asked for; `offset` is how much of the build's output the caller has already."""

    python: str
    setup: wire.EnvSetup
    cwd: str = ""
    offset: int = 0


def main(arguments: List[str]) -> int:
    """`build-env NONCE HOME`, with a `Wanted` as a line of JSON on stdin; ends when stdin does.

    On stdout the nonce, then lines of JSON: {"output", "offset"}, {"joined": true} when another build is
    followed, and at the end {"built": {...}} or {"failed": {"code", "message", "hint"}}.
    """
    if arguments[:1] == ["--detached"]:
        return env_builder.main(arguments[1])
    nonce, home = arguments
    try:
        _tell_line(nonce.encode())
        try:
            _tell({"built": _build(home, _read_wanted())})
        except (RunError, OSError, wire.WireError) as error:
            _tell({"failed": env_builder.as_failure(error)})
    except (BrokenPipeError, _Alone):
        return 1
    return 0


class _Alone(Exception):
    """Nobody listens any more."""


def _read_wanted() -> Wanted:
    line = sys.stdin.buffer.readline(MAX_REQUEST + 1)
    if len(line) > MAX_REQUEST:
        raise wire.WireError("the request is too long")
    try:
        return wire.from_json(Wanted, json.loads(line))
    except ValueError as error:
        raise wire.WireError(str(error)) from error


def _tell(value: Dict[str, object]) -> None:
    _tell_line(json.dumps(value).encode("ascii"))


def _tell_line(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


# --- following a build -------------------------------------------------------------------------------------


def _build(home: str, wanted: Wanted) -> Dict[str, object]:
    _check(wanted.setup)
    base = envs.base(home, wanted.python, envs.folder_of(wanted.cwd), wanted.setup)
    python = envs.find(home, base, wanted.setup)
    fresh = python is None
    if python is None:
        python = _follow(home, base, wanted)
    found = probe.inspect(home, python)
    return {
        "python": python,
        "torch": found.torch,
        "packages": found.packages,
        "base": base.path,
        "fresh": fresh,
    }


def _check(setup: wire.EnvSetup) -> None:
    """Raises RunError `bad-spec`."""
    if setup.recipe:
        env_recipes.find(setup.recipe)
    for word in (*setup.packages, *setup.pip_args):
        if not word.strip() or not word.isprintable():
            raise RunError("bad-spec", f"{word!r} is nothing that pip can take", "see [env_setup]")
    for package in setup.packages:
        if package.lstrip().startswith("-"):
            raise RunError("bad-spec", f"{package!r} is no package", "options of pip belong into pip_args")
    for option in setup.pip_args:
        if _writes_elsewhere(option):
            raise RunError(
                "bad-spec",
                f"pip_args cannot have {option}: packages only go into the environment",
                "leave it away",
            )


def _writes_elsewhere(option: str) -> bool:
    """Whether pip takes it as one of NOT_OURS: also by a beginning, and `-t` with its value behind it."""
    word = option.partition("=")[0]
    if not word.startswith("--"):
        return word.startswith("-t")
    return word != "--pre" and len(word) > len("--") and any(long.startswith(word) for long in NOT_OURS)


def _follow(home: str, base: probe.Interpreter, wanted: Wanted) -> str:
    """Tell what the build says until it is over, and start it unless it goes on. Raises RunError."""
    name = envs.env_hash(base, wanted.setup)
    output = _Output(paths.env_log(home, name), wanted.offset)
    joined = started = False
    while True:
        lock = envs.take(home, name)
        if lock is None and not started and not joined:
            joined = True
            output.join()
            _tell({"joined": True})
        if started or joined:
            output.tell(last=lock is not None)
        if lock is None:
            _wait()
            continue
        try:
            python = envs.find(home, base, wanted.setup)
            if python is not None:
                return python
            failure = files.read_json(paths.env_failure(home, name)) if started or joined else None
            if failure is not None:
                words = [str(failure.get(key, "")) for key in ("code", "message", "hint")]
                raise RunError(*words)
            if started:
                if env_builder.is_full(home):
                    raise env_builder.no_space()
                raise RunError(
                    "no-env",
                    "the build of the environment ended before it was done, without a word: it was killed",
                    f"launch again; what it said is in {paths.env_log(home, name)} on the host",
                )
            os.ftruncate(lock, 0)
            _start(home, base, wanted.setup, lock)
        finally:
            os.close(lock)
        output.offset = 0
        started = True


def _wait() -> None:
    """A moment; raises _Alone when stdin has ended."""
    if select.select([0], [], [], LOOK_SECONDS)[0] and not os.read(0, 4096):
        raise _Alone


class _Output:
    """Tells what is added to a log."""

    def __init__(self, path: str, offset: int) -> None:
        self.offset = max(0, offset)
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def join(self) -> None:
        """Leave out the beginning of what was said before."""
        size = os.stat(self._path).st_size
        if self.offset > size:  # that was another build
            self.offset = 0
        self.offset = max(self.offset, size - JOIN_BYTES)

    def tell(self, last: bool) -> None:
        """What there is; `last`: nothing will follow."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                data = os.pread(fd, PIECE, self.offset)
                self.offset += len(data)
                text = self._decode(data, last and not data)
                if text:
                    _tell({"output": text, "offset": self.offset})
                if not data:
                    return
        finally:
            os.close(fd)


def _start(home: str, base: probe.Interpreter, setup: wire.EnvSetup, lock: int) -> None:
    """Start the build in a session of its own; its output is the lock."""
    command = instance.agent_command("build-env", "--detached", home)
    builder = subprocess.Popen(
        command,
        cwd="/",
        env={**os.environ, "ENCAMP_HOME": home},
        stdin=subprocess.PIPE,
        stdout=lock,
        stderr=lock,
        start_new_session=True,
    )
    assert builder.stdin is not None
    builder.stdin.write(json.dumps([base._asdict(), wire.to_json(setup)]).encode("ascii"))
    builder.stdin.close()
