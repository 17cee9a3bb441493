"""The requests for virtual environments: is one here, and which are there. `env_build` builds them."""

from __future__ import annotations

import dataclasses
from typing import List, Optional

from . import envs, probe, wire
from .actions import in_thread
from .services import Methods, Nothing, Result, Services
from .viewer import Viewer

MAX_LISTED = 100


@dataclasses.dataclass(frozen=True)
class EnvHas:
    """As for a build."""

    python: str
    setup: wire.EnvSetup
    cwd: str = ""


async def env_has(services: Services, viewer: Viewer, params: EnvHas) -> Result:
    """The environment's interpreter and torch when it is built, else null."""
    del viewer
    found: Result = await in_thread(_look, services.home, params)
    return found


def _look(home: str, params: EnvHas) -> Result:
    base = envs.base(home, params.python, envs.folder_of(params.cwd), params.setup)
    python: Optional[str] = envs.find(home, base, params.setup)
    inspected = probe.inspect(home, python) if python else None
    return {
        "python": python,
        "torch": inspected.torch if inspected else None,
        "packages": inspected.packages if inspected else {},
        "base": base.path,
    }


async def env_list(services: Services, viewer: Viewer, params: Nothing) -> Result:
    """All environments of ours on this host."""
    del viewer, params
    return {"environments": await in_thread(_describe, services.home)}


def _describe(home: str) -> List[Result]:
    found = envs.describe(home)[:MAX_LISTED]
    for each in found:
        complete = each["state"] == "complete"
        each["has"] = probe.inspect(home, each["python"]).packages if complete else {}
    return found


METHODS: Methods = {"env_has": (EnvHas, env_has), "env_list": (Nothing, env_list)}
