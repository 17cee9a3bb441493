"""The requests with which a run on several hosts is begun: on all of them, or on none.

The viewer asks every host to `plan` and compares the answers, then to `prepare`; when all have agreed, it
says `start` to all, and when all have started, `confirm`. `abandon` takes back whatever was done.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional

from . import control, runs, wire
from .actions import in_thread
from .errors import RunError
from .prepare import Order
from .run_requests import as_result
from .services import Methods, OneRun, Result, Services
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class Plan:
    """What would be launched."""

    spec: wire.LaunchSpec
    attempt: int = 1
    placement: Optional[wire.Placement] = None
    gpus_may_be_held: bool = False


@dataclasses.dataclass(frozen=True)
class Prepare:
    """What is to be started soon."""

    spec: wire.LaunchSpec
    attempt: int
    placement: wire.Placement
    actor: str
    secrets: Dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    forced: str = ""
    note: str = ""
    resume_step: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class OneAttempt:
    """An attempt."""

    run: str
    attempt: int


@dataclasses.dataclass(frozen=True)
class Abandon(OneAttempt):
    """An attempt; with a `rendezvous_id` only if that is its own. `actor` is who does not want it."""

    rendezvous_id: str = ""
    actor: str = ""


async def plan(services: Services, viewer: Viewer, params: Plan) -> Result:
    """What `prepare` would answer; nothing is written."""
    del viewer
    order = Order(params.spec, "", params.attempt, params.placement)
    return as_result(await services.actions.plan(order, params.gpus_may_be_held))


async def prepare(services: Services, viewer: Viewer, params: Prepare) -> Result:
    """Claim everything and write everything; start nothing."""
    del viewer
    order = Order(
        params.spec,
        params.actor,
        params.attempt,
        params.placement,
        params.secrets,
        params.forced,
        params.note,
        params.resume_step,
    )
    return as_result(await services.actions.prepare(order))


async def start(services: Services, viewer: Viewer, params: OneAttempt) -> Result:
    """Start what was prepared; answers when its launcher runs."""
    del viewer
    await services.actions.start(params.run, params.attempt)
    return {}


async def confirm(services: Services, viewer: Viewer, params: OneAttempt) -> Result:
    """All hosts have started it."""
    del viewer
    await in_thread(control.confirm, services.home, params.run, params.attempt)
    return {}


async def abandon(services: Services, viewer: Viewer, params: Abandon) -> Result:
    """Take back what was prepared, stop what was started. There being nothing is no error."""
    del viewer
    await services.actions.abandon(params.run, params.attempt, params.rendezvous_id, params.actor)
    return {}


async def spec(services: Services, viewer: Viewer, params: OneRun) -> Result:
    """What the newest attempt was launched with."""
    del viewer
    attempt = runs.current(services.home, params.run)
    found, placement = attempt.launch_spec(), attempt.placement()
    if found is None:
        raise RunError("no-run", f"what run {params.run!r} was launched with cannot be read any more")
    return {
        "spec": wire.to_json(found),
        "attempt": attempt.number,
        "placement": None if placement is None else wire.to_json(placement),
    }


METHODS: Methods = {
    "plan": (Plan, plan),
    "prepare": (Prepare, prepare),
    "start": (OneAttempt, start),
    "confirm": (OneAttempt, confirm),
    "abandon": (Abandon, abandon),
    "spec": (OneRun, spec),
}
