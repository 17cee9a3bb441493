"""What the requests of viewers work with, and what their functions have in common.

A method is a dataclass of parameters and a function from checked parameters to the result's object. The
function raises RunError or BlobError to refuse, and WireError for parameters that are not as they must be.
Whatever may take long runs in a thread or waits by looking again, so that telemetry goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from typing import Any, Awaitable, Callable, Dict, List, Tuple, Type

from . import actions, blobs, check, network, paths, runs, watch, wire
from .attempt import Attempt
from .errors import RunError
from .viewer import Viewer

Result = Dict[str, Any]

RESULT_BYTES = wire.MAX_LINE - 4096
"""Bytes of JSON that a result may take."""


class Services:
    """What the functions work with. `retire` ends the daemon."""

    def __init__(
        self, home: str, watcher: watch.Watcher, doer: actions.Actions, retire: Callable[[], None]
    ) -> None:
        self.home = home
        self.watcher = watcher
        self.actions = doer
        self.retire = retire
        self.blobs = blobs.BlobStore(paths.code_dir(home))
        self.checker = check.Checker(home)
        self.uploading = asyncio.Lock()
        self.hashing = asyncio.Lock()
        self.meter = network.Meter()


Methods = Dict[str, Tuple[Type[Any], Callable[[Services, Viewer, Any], Awaitable[Result]]]]
"""Name -> the class of its parameters and its function."""


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No parameters."""


@dataclasses.dataclass(frozen=True)
class OneRun:
    """A run."""

    run: str


def run_dir(services: Services, params: OneRun) -> str:
    """The folder of a run that exists. Raises RunError `no-run`."""
    runs.current(services.home, params.run)
    return paths.run_dir(services.home, params.run)


def attempt_of(services: Services, run: str, number: int) -> Attempt:
    """An attempt that exists. Raises RunError `no-run`."""
    attempt = services.watcher.attempt(run, number) if wire.RUN_ID.match(run) else None
    if attempt is None or not os.path.isdir(attempt.dir):
        raise RunError("no-run", f"there is no attempt {number} of {run[:80]!r} on this host")
    return attempt


def newest_that_fit(entries: List[Result]) -> List[Result]:
    """The last of `entries` that fit into a line together."""
    left = RESULT_BYTES
    for number, entry in enumerate(reversed(entries)):
        left -= len(json.dumps(entry)) + 2
        if left < 0:
            return entries[len(entries) - number :]
    return entries
