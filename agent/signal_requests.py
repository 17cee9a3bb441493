"""The request that sends a signal to one rank, and can have a stop of it undone by this host itself."""

from __future__ import annotations

import dataclasses
import os
import signal as signals
import time
from typing import Optional

from . import files, prepare, process, reap
from .actions import in_thread
from .attempt import Attempt
from .errors import RunError
from .services import Methods, Result, Services, attempt_of
from .viewer import Viewer

ENDING = ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP", "SIGQUIT", "SIGABRT")
"""What ends a process that has not decided otherwise."""

ALLOWED = ("STOP", "CONT", "TERM", "KILL", "INT", "HUP", "QUIT", "ABRT", "USR1", "USR2")

MAX_UNDO_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class SignalTo:
    """`signal` as in SIGSTOP. A stop with `undo_after_seconds` ends by then, whatever becomes of viewers."""

    run: str
    attempt: int
    rank: int
    signal: str
    actor: str
    undo_after_seconds: Optional[float] = None


async def send_signal(services: Services, viewer: Viewer, params: SignalTo) -> Result:
    """Send it to the rank's process, and to nothing else."""
    del viewer
    attempt = attempt_of(services, params.run, params.attempt)
    if params.signal in ENDING:
        await services.actions.look_last(attempt)
    return {"pid": await in_thread(send, attempt, params)}


def send(attempt: Attempt, params: SignalTo) -> int:
    """Send a signal to a rank of this host; returns its pid. Raises RunError, OSError.

    Codes: `bad-request`, and `no-rank` for a rank that is not here, has not begun or is over.
    """
    name, undo = params.signal, params.undo_after_seconds
    if name[:3] != "SIG" or name[3:] not in ALLOWED:
        raise RunError("bad-request", f"{name[:20]!r} cannot be sent", f"there is SIG{', SIG'.join(ALLOWED)}")
    if undo is not None and not (name == "SIGSTOP" and 0 < undo <= MAX_UNDO_SECONDS):
        raise RunError("bad-request", f"undo_after_seconds goes with SIGSTOP, up to {MAX_UNDO_SECONDS:g}")
    which = f"rank {params.rank} of {params.run}"
    here = attempt.expected()
    if params.rank not in here:
        has = f"it has {here.start} to {here.stop - 1}" if here else ""
        raise RunError("no-rank", f"{which} is not on this host", has)
    identity = attempt.ranks().get(params.rank)
    if identity is None or not process.alive(*identity):
        what = "has not begun" if identity is None and not attempt.condition().over else "has ended"
        raise RunError("no-rank", f"{which} {what}: it gets no signal")
    text = f"{name} to rank {params.rank}, process {identity[0]}"
    path = os.path.join(attempt.dir, f"rank{params.rank}", "undo.json")
    if name in ("SIGSTOP", "SIGCONT"):
        try:
            os.unlink(path)  # what is done now counts
        except FileNotFoundError:
            pass
    if undo is not None:
        supervisor = attempt.supervisor()
        if supervisor is None:
            raise RunError("busy", f"nobody would resume {which}: its supervisor is gone", "try again soon")
        files.write_json(path, {"at": time.monotonic() + undo})
        reap.send(dict([supervisor]), signals.SIGUSR1)
        text += f", to go on after {undo:g} s at the latest"
    os.kill(identity[0], signals.Signals[name])
    prepare.add_event(attempt, "signal", params.actor, text)
    return identity[0]


METHODS: Methods = {
    "signal": (SignalTo, send_signal),
}
