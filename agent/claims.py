"""Who has what on this host: names of runs, numbers of attempts, GPUs. Taken under one lock, or refused.

An attempt holds the GPUs that its ranks use from its preparation to its end. Nothing is written down for it
but the attempt itself, so a claim ends with it, whatever becomes of the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator, List, Sequence

from . import paths, runs
from .attempt import Attempt
from .errors import RunError


@contextlib.contextmanager
def lock(home: str) -> Iterator[None]:
    """Keep others from taking anything meanwhile: other threads, and a daemon that is just being replaced."""
    fd = -1
    # Without it where the disk is full or has no locks: requests come from one daemon, nearly always.
    with contextlib.suppress(OSError):
        fd = os.open(paths.claims_file(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def holders(home: str, run: str, gpus: Sequence[int]) -> List[Attempt]:
    """The living attempts of other runs than `run` that hold one of `gpus`, at most one a run."""
    if not gpus:
        return []
    try:
        names = os.listdir(paths.runs_dir(home))
    except OSError:
        return []
    found = []
    for other in names:
        numbers = runs.numbers(home, other) if other != run else []
        # Most runs have ended long ago: this is all that is looked at of them.
        if numbers and not os.path.exists(
            os.path.join(paths.attempt_dir(home, other, numbers[-1]), "exit.json")
        ):
            attempt = Attempt(home, other, numbers[-1])
            if attempt.gpus().intersection(gpus) and not attempt.condition().over:
                found.append(attempt)
    return found


def describe(holders: Sequence[Attempt], gpus: Sequence[int]) -> str:
    """Which of `gpus` are held by whom, as one sentence."""
    parts = []
    for attempt in holders:
        held = sorted(attempt.gpus().intersection(gpus))
        parts.append(
            f"GPU {', '.join(map(str, held))} by attempt {attempt.number} of {attempt.run}, "
            f"launched by {attempt.actor()}"
        )
    return "GPUs of this host are held: " + "; ".join(parts)


def refuse_held(home: str, run: str, gpus: Sequence[int]) -> None:
    """Raise RunError `gpus-held` when another run holds one of them."""
    found = holders(home, run, gpus)
    if found:
        raise RunError(
            "gpus-held",
            describe(found, gpus),
            "stop that run, choose other GPUs with CUDA_VISIBLE_DEVICES in env, "
            "or launch with --force and a reason",
        )
