"""What the wire's names and sizes may be, and the words for states."""

from __future__ import annotations

import re
from typing import Dict, Union

PROTOCOL = (1, 1)
"""Major and minor version of this format. A different major does not interoperate."""

MAX_CHUNK = 96 * 1024
"""Raw bytes in one `Log` message or one reply that carries data: in base64 it stays well under `MAX_LINE`."""

MAX_NODES = 1024
"""Hosts of one run."""

KNOWN_RUNS = 200
"""The newest runs that a viewer is told about on connecting."""

RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}\Z")
"""Names of runs: safe as a folder's name, as a shell word and on the screen."""

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""What users call hosts: also part of commands that a message offers for pasting into a shell."""

STREAM = re.compile(r"launcher\Z|rank(0|[1-9][0-9]{0,4})\Z")
"""Names of an attempt's log streams: `launcher` is what torchrun itself says, `rank3` is rank 3's output."""

LIVE_STATES = ("starting", "running", "stalled", "stopping")

END_STATES = ("finished", "failed", "stopped")

RUN_STATES = (*LIVE_STATES, *END_STATES, "unreachable")
"""States of a run. `unreachable` is the viewer's: its host cannot be asked at the moment."""

RANK_STATES = ("starting", "running", "exited", "lost")
"""`exited`: its end was recorded, see `exit_code`. `lost`: gone without a word (power cut, SIGKILL)."""

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,31}\Z")
"""The name of a strategy or a kind of number."""

LARGEST_COUNT = 2**53

GPU_STATES = (
    "ok", "none", "starting", "not-loaded", "no-permission", "blocked", "mismatch", "lost", "reset-required",
    "hung", "error",
)  # fmt: skip
"""State of the NVIDIA driver, or of one GPU. `none` is a machine without NVIDIA GPUs: not a fault."""

Scalar = Union[None, bool, int, float, str]

Record = Dict[str, Scalar]
"""A line of a rank's progress: `step`, `loss`, `tokens_per_second`, ... NaN and infinity come as strings."""
