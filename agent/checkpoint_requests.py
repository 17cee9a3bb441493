"""The request that tells what a run would go on from: the checkpoints of its trainer on this host."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Sequence

from . import files, paths, runs
from .actions import in_thread
from .errors import RunError
from .services import Methods, OneRun, Result, Services
from .viewer import Viewer

MAX_TOLD = 200
"""Checkpoints that are told, the newest ones."""

FOLDER = re.compile(r"step-(0|[1-9][0-9]{0,14})\Z")


async def checkpoints(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """The newest checkpoints, oldest first: complete ones by step with their time, and others."""
    del viewer
    found: Result = await in_thread(find, services.home, params.run)
    return found


def find(home: str, run: str) -> Result:
    """What is in the folder that the run's command names, else in that of the run. Raises RunError."""
    attempt = runs.current(home, run)
    spec = attempt.launch_spec()
    if spec is None:
        raise RunError("no-run", f"what run {run!r} was launched with cannot be read any more")
    path = os.path.expanduser(_option(spec.args, "--checkpoint-dir")) or paths.checkpoints_dir(home, run)
    path = os.path.join(str(attempt.resolved().get("cwd") or "/"), path)
    complete: List[Dict[str, float]] = []
    incomplete: List[int] = []
    try:
        matches = [match for match in map(FOLDER.match, os.listdir(path)) if match]
    except OSError:
        matches = []
    for step in sorted(int(match[1]) for match in matches)[-MAX_TOLD:]:
        said = files.read_json(os.path.join(path, f"step-{step}", "complete.json")) or {}
        time = said.get("time")
        if said.get("step") == step and isinstance(time, (int, float)):
            complete.append({"step": step, "time": float(time)})
        else:
            incomplete.append(step)
    return {"path": path, "kind": spec.target_kind, "complete": complete, "incomplete": incomplete}


def _option(words: Sequence[str], name: str) -> str:
    """The value of an option in a command, the last one that is given; empty without."""
    found = ""
    for word, following in zip(words, [*words[1:], ""]):
        if word == name:
            found = following
        elif word.startswith(name + "="):
            found = word[len(name) + 1 :]
    return found


METHODS: Methods = {
    "checkpoints": (OneRun, checkpoints),
}
