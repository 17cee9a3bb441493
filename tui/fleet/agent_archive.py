"""The agent that hosts get, put together once and by one thread, whoever asks for it first.

All hosts of a fleet ask at the same time, and Python 3.11 has a fault by which `ast.parse` in two threads at
once fails (python/cpython issue 106905).
"""

from __future__ import annotations

import functools
import threading

from agent import bundle

from . import paths
from .errors import HostError

_building = threading.Lock()


def archive() -> bundle.Bundle:
    """The agent. Raises HostError when it cannot be put together."""
    with _building:
        return _archive()


@functools.lru_cache(maxsize=1)
def _archive() -> bundle.Bundle:
    try:
        return bundle.build(str(paths.state_dir() / "agent"))
    except (bundle.BundleError, OSError) as error:
        raise HostError(f"The agent cannot be put together here: {error}.", "Install encamp anew.") from error
