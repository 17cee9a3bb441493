"""The request for projects: whether one is here. What is not comes past the daemon, see `receive`."""

from __future__ import annotations

import dataclasses

from . import paths, trees
from .actions import in_thread
from .services import Methods, Result, Services
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class TreeHas:
    """A tree."""

    sha256: str


async def tree_has(services: Services, viewer: Viewer, params: TreeHas) -> Result:
    """Whether it is here, complete and as it came."""
    del viewer
    return {"present": await in_thread(trees.present, paths.code_dir(services.home), params.sha256)}


METHODS: Methods = {"tree_has": (TreeHas, tree_has)}
