"""The request whether a virtual environment is here. It is built by a command, see `env_build`."""

from __future__ import annotations

import dataclasses
from typing import Optional

from . import envs, probe, wire
from .actions import in_thread
from .services import Methods, Result, Services
from .viewer import Viewer


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
    torch = probe.inspect(home, python).torch if python else None
    return {"python": python, "torch": torch, "base": base.path}


METHODS: Methods = {"env_has": (EnvHas, env_has)}
