"""The runs of this host: finding them, and telling about each what its current attempt says.

A run is a folder and an attempt is a folder in it, see `paths.py`; there is no other list of runs.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Optional

from . import files, paths, wire
from .attempt import Attempt
from .errors import RunError

SETTLED_SECONDS = 2.0
"""A folder's time of change says that nothing has changed only when it is older than the clock's grain."""


def numbers(home: str, run: str) -> List[int]:
    """The numbers of a run's attempts, oldest first; empty when there is no such run."""
    if not wire.RUN_ID.match(run):
        return []
    try:
        names = os.listdir(paths.attempts_dir(home, run))
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def current(home: str, run: str) -> Attempt:
    """The newest attempt of a run. Raises RunError `no-run`."""
    found = numbers(home, run)
    if not found:
        raise RunError("no-run", f"there is no run {run[:80]!r} on this host")
    return Attempt(home, run, found[-1])


def describe(home: str, run: str) -> Optional[wire.Run]:
    """A run as its current attempt has it, or None when there is no such run or it cannot be read yet."""
    found = numbers(home, run)
    return describe_attempt(home, Attempt(home, run, found[-1])) if found else None


def describe_attempt(home: str, attempt: Attempt) -> Optional[wire.Run]:
    """The run with `attempt` as its current one, or None when its spec cannot be read."""
    spec = attempt.launch_spec()
    if spec is None:
        return None
    resolved, condition = attempt.resolved(), attempt.condition()
    created = (files.read_json(paths.run_file(home, attempt.run)) or {}).get("created")
    argv, world = resolved.get("argv"), resolved.get("world_size")
    placement, project = attempt.placement(), spec.project
    return wire.Run(
        run=attempt.run,
        name=spec.name,
        profile=spec.profile,
        strategy=spec.strategy,
        attempt=attempt.number,
        state=condition.state,
        reason=condition.reason,
        created=float(created) if isinstance(created, (int, float)) else condition.started,
        started=condition.started,
        ended=condition.ended,
        world_size=world if isinstance(world, int) else attempt.nproc(),
        nproc_per_node=attempt.nproc(),
        python=str(resolved.get("python") or spec.python),
        command=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
        cwd=str(resolved.get("cwd") or spec.cwd),
        exit_code=condition.exit_code,
        nodes=() if placement is None else placement.nodes,
        node_rank=0 if placement is None else placement.node_rank,
        code="" if project is None else f"{project.name} {project.sha256[:10]} {project.revision}".rstrip(),
    )


# --- all runs ----------------------------------------------------------------------------------------------


class Registry:
    """All runs of this host, for somebody who looks every second: what has ended is not looked at again.

    A new attempt changes the time of the folder of all runs (see `prepare.py`), so a look at a thousand ended
    runs is one `stat`.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self._attempts: Dict[str, Attempt] = {}
        self._described: Dict[str, wire.Run] = {}
        self._folder_changed = -1.0

    def runs(self) -> List[wire.Run]:
        """Every run, the one that was started last first."""
        self._look_for_attempts()
        for run, attempt in self._attempts.items():
            known = self._described.get(run)
            if known is None or known.state not in wire.END_STATES:
                found = describe_attempt(self.home, attempt)
                if found is not None:
                    self._described[run] = found
        return sorted(self._described.values(), key=lambda found: found.started, reverse=True)

    def attempt(self, run: str) -> Optional[Attempt]:
        """The current attempt of a run as of the last look."""
        return self._attempts.get(run)

    def live(self) -> List[Attempt]:
        """The current attempts of the runs that had not ended at the last look."""
        return [
            self._attempts[run.run] for run in self._described.values() if run.state not in wire.END_STATES
        ]

    def _look_for_attempts(self) -> None:
        folder = paths.runs_dir(self.home)
        changed = files.changed_at(folder)
        if changed == self._folder_changed:
            return
        self._folder_changed = changed if time.time() - changed > SETTLED_SECONDS else -1.0
        try:
            names = os.listdir(folder)
        except OSError:
            names = []
        for gone in set(self._attempts) - set(names):
            del self._attempts[gone]
            self._described.pop(gone, None)
        for run in names:
            found = numbers(self.home, run)
            known = self._attempts.get(run)
            if found and (known is None or known.number != found[-1]):
                self._attempts[run] = Attempt(self.home, run, found[-1])
                self._described.pop(run, None)
