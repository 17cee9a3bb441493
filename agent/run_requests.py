"""The requests that begin, end and describe runs."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Dict, List, Optional

from . import files, paths, progress, runs, watch, wire
from .actions import in_thread
from .attempt import Attempt
from .prepare import Order, Started
from .services import RESULT_BYTES, Methods, OneRun, Result, Services, attempt_of, newest_that_fit
from .viewer import Viewer

MAX_ATTEMPTS = 200
"""Attempts that `run` lists: the newest, and of these as many as fit into a line."""

MAX_EVENTS = 500
"""Events that `events` lists, likewise."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """What to launch; with `dry_run`, only say what that would be."""

    spec: wire.LaunchSpec
    actor: str
    dry_run: bool = False
    secrets: Dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    forced: str = ""


@dataclasses.dataclass(frozen=True)
class Restart:
    """Which run, and who wants it; with `attempt`, only if no later one has begun."""

    run: str
    actor: str
    secrets: Dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    forced: str = ""
    resume_step: Optional[int] = None
    attempt: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Stop:
    """Without `grace_seconds`, what the spec says counts; with `attempt`, no later one is stopped."""

    run: str
    actor: str
    grace_seconds: Optional[float] = None
    attempt: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class ProgressOf:
    """At most `limit` records of one rank."""

    run: str
    attempt: int
    rank: int
    limit: int


async def launch_run(services: Services, viewer: Viewer, params: Launch) -> Result:
    """Start a run; answers when its launcher has been started."""
    del viewer
    order = Order(params.spec, params.actor, secrets=params.secrets, forced=params.forced)
    if params.dry_run:
        return as_result(await services.actions.plan(order))
    return as_result(await services.actions.launch(order))


async def restart_run(services: Services, viewer: Viewer, params: Restart) -> Result:
    """Stop the current attempt if it lives, wait until it is gone, start the next one."""
    del viewer
    return as_result(
        await services.actions.restart(
            params.run, params.actor, params.secrets, params.forced, params.resume_step, params.attempt
        )
    )


async def stop_run(services: Services, viewer: Viewer, params: Stop) -> Result:
    """Stop the current attempt; answers when everything of it is gone."""
    del viewer
    attempt = await services.actions.stop(params.run, params.actor, params.grace_seconds, params.attempt)
    return {"state": attempt.condition().state, "reaped": attempt.reaped()}


def as_result(started: Started) -> Result:
    """What was started; arguments and variables that do not fit into a line are left out."""
    result = dict(started._asdict())
    for name in ("env", "argv"):
        if len(json.dumps(result)) > RESULT_BYTES:
            result[name] = type(result[name])()
    return result


async def describe_run(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """The newest attempts of a run, oldest first."""
    del viewer
    return {"attempts": await in_thread(_attempts, services, params.run)}


def _attempts(services: Services, run: str) -> List[Result]:
    runs.current(services.home, run)
    found = []
    for number in runs.numbers(services.home, run)[-MAX_ATTEMPTS:]:
        attempt = Attempt(services.home, run, number)
        condition = attempt.condition()
        found.append(
            {
                "attempt": number,
                "state": condition.state,
                "started": condition.started,
                "ended": condition.ended,
                "exit_code": condition.exit_code,
                "reason": condition.reason,
                "streams": attempt.streams(),
            }
        )
    return newest_that_fit(found)


async def events(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """The newest events of all attempts of a run, oldest first."""
    del viewer
    return {"events": await in_thread(_events, services, params.run)}


def _events(services: Services, run: str) -> List[Result]:
    runs.current(services.home, run)
    found: List[wire.Event] = []
    for number in reversed(runs.numbers(services.home, run)):
        path = os.path.join(paths.attempt_dir(services.home, run, number), "events.jsonl")
        found[:0] = watch.parse_events(files.read_json_lines(path)[0], run, number)
        if len(found) >= MAX_EVENTS:
            break
    return newest_that_fit([wire.to_json(event) for event in found[-MAX_EVENTS:]])


async def progress_of(services: Services, viewer: Viewer, params: ProgressOf) -> Result:
    """The records of a rank's progress file, evenly thinned, the newest among them."""
    del viewer
    attempt = attempt_of(services, params.run, params.attempt)
    path = os.path.join(attempt.dir, f"rank{max(0, params.rank)}", "progress.jsonl")
    limit = max(1, min(1000, params.limit))
    return {"records": await in_thread(progress.history, path, limit)}


METHODS: Methods = {
    "launch": (Launch, launch_run),
    "restart": (Restart, restart_run),
    "stop": (Stop, stop_run),
    "run": (OneRun, describe_run),
    "events": (OneRun, events),
    "progress": (ProgressOf, progress_of),
}
