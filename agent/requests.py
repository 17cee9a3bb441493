"""The requests of viewers: all methods that there are, and the answer to one request."""

from __future__ import annotations

import dataclasses
import time
from typing import Optional

from . import (
    blobs,
    check_requests,
    checkpoint_requests,
    diagnosis_requests,
    env_requests,
    file_requests,
    launch,
    log_requests,
    network_requests,
    node_requests,
    probe,
    run_requests,
    signal_requests,
    tree_requests,
    wire,
)
from .actions import in_thread
from .errors import RunError
from .services import Methods, Nothing, Result, Services
from .viewer import Viewer


async def answer(services: Services, viewer: Viewer, request: wire.Request) -> wire.Message:
    """The Reply or Failure to one request."""
    found = METHODS.get(request.method)
    if found is None:
        return wire.Failure(
            request.id, "unknown-method", f"this agent knows no {request.method[:80]!r}", "update encamp"
        )
    parameters, function = found
    try:
        checked = wire.from_json(parameters, request.params, request.method)
        return wire.Reply(request.id, await function(services, viewer, checked))
    except RunError as error:
        return wire.Failure(request.id, error.code, error.message, error.hint)
    except blobs.BlobError as error:
        return wire.Failure(request.id, error.code, str(error))
    except wire.WireError as error:
        return wire.Failure(request.id, "bad-request", str(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return wire.Failure(request.id, "io", f"the host refused it: {error.strerror}{where}")


async def ping(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """Whether somebody is there, and the host's clock."""
    del services, viewer, params
    return {"time": time.time()}


async def retire(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """Make room for another daemon; runs go on."""
    del viewer, params
    services.retire()
    return {}


@dataclasses.dataclass(frozen=True)
class Probe:
    """`python` is a path or a name as a profile has it: that one is asked too."""

    python: str = ""


async def probe_host(services: Services, viewer: Viewer, params: Probe) -> Result:
    """The Pythons (null when they are not known yet), GPUs and cores that a launch could use."""
    del viewer
    found = await services.checker.pythons()
    named = await in_thread(_named, services.home, params.python) if params.python else None
    status = await services.actions.gpu_status()
    return {
        "interpreters": found,
        "gpus": len(status.gpus),
        "cores": launch.usable_cores(),
        "named": named,
    }


def _named(home: str, python: str) -> Optional[Result]:
    try:
        return probe.resolve(home, python, "", ())._asdict()
    except RunError:
        return None  # a launch says why


METHODS: Methods = {
    "ping": (Nothing, ping),
    "retire": (Nothing, retire),
    "probe": (Probe, probe_host),
    **run_requests.METHODS,
    **node_requests.METHODS,
    **log_requests.METHODS,
    **file_requests.METHODS,
    **tree_requests.METHODS,
    **check_requests.METHODS,
    **network_requests.METHODS,
    **env_requests.METHODS,
    **diagnosis_requests.METHODS,
    **signal_requests.METHODS,
    **checkpoint_requests.METHODS,
}
