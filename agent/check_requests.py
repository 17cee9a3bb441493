"""The request for all that is to be known of a host before a launch."""

from __future__ import annotations

import dataclasses

from .services import Methods, Result, Services
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class Check:
    """Without `pythons` no interpreter is asked for torch, which may take long the first time."""

    pythons: bool = True


async def check(services: Services, viewer: Viewer, params: Check) -> Result:
    """The facts of this host, see `check.py`."""
    del viewer
    doer = services.actions
    facts: Result = await services.checker.facts(doer.gpu_status(), doer.gpu_survey, params.pythons)
    return facts


METHODS: Methods = {"check": (Check, check)}
