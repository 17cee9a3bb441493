"""Finding and ending every process of an attempt, whoever its parent is by now.

An attempt's processes are those that carry its marks in their environment, those that its files name, and
the descendants of both. Each is signalled only while its start time says that it is still the same process.
"""

from __future__ import annotations

import os
import signal

from . import environment, files, process


class Tree:
    """The processes of one attempt. `env` is what they were given by us.

    `supervisor` is the attempt's supervisor, which is none of them, but whose children all are: the launcher
    and whatever has lost its parent.
    """

    def __init__(self, attempt_dir: str, env: dict[str, str], supervisor: int | None = None) -> None:
        self._dir = attempt_dir
        self._supervisor = set() if supervisor is None else {supervisor}
        self._marks = {name: env[name] for name in environment.MARKS if name in env}

    def members(self) -> dict[int, int]:
        """pid -> start time of all living processes of the attempt."""
        found = self._named()
        if self._marks:
            found.update(process.marked(self._marks))
        found.update(process.descendants({*self._supervisor, *found}))
        for pid in self._supervisor:
            found.pop(pid, None)
        return found

    def _named(self) -> dict[int, int]:
        """The launcher and the ranks, as far as they have written down who they are and still live."""
        names = [os.path.join(self._dir, "launcher.json")]
        try:
            ranks = [name for name in os.listdir(self._dir) if name.startswith("rank")]
        except OSError:
            ranks = []
        names += [os.path.join(self._dir, name, "rank.json") for name in ranks]
        found = {}
        for name in names:
            identity = read_identity(name)
            if identity is not None and process.alive(*identity):
                found[identity[0]] = identity[1]
        return found


def read_identity(path: str) -> tuple[int, int] | None:
    """(pid, start time) out of one of the attempt's files, or None when it is not there or says nothing."""
    return identity_in(files.read_json(path) or {})


def identity_in(values: dict[str, object]) -> tuple[int, int] | None:
    """(pid, start time) as they stand in `values`, or None when they are not there or cannot be true."""
    pid, started = values.get("pid"), values.get("start_time")
    return (pid, started) if isinstance(pid, int) and isinstance(started, int) and pid > 1 else None


def send(members: dict[int, int], number: int) -> None:
    """Send a signal to each of `members` that is still the same process."""
    for pid, started in members.items():
        if process.alive(pid, started):
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # gone by now, or it has become another user's: neither can be ended by us


def ask_to_end(members: dict[int, int]) -> None:
    """Send SIGTERM, and wake up what is stopped: it could not act on it otherwise."""
    send(members, signal.SIGTERM)
    send(members, signal.SIGCONT)


def kill(members: dict[int, int]) -> None:
    """Send SIGKILL. Stopping all of them first keeps them from starting new ones meanwhile."""
    send(members, signal.SIGSTOP)
    send(members, signal.SIGKILL)
