"""Says aloud that a run stalls or has failed, once each: a bell, and a notification of the desktop.

Terminals show a notification when they are sent an escape sequence for it: OSC 9 or OSC 777, whichever they
know. `ENCAMP_NO_BELL=1` turns both off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .fleet.sanitize import printable
from .fleet.store import RunView, Store

if TYPE_CHECKING:
    from .app import EncampApp

SECONDS = 1.0
"""How often the app listens."""

OFF = "ENCAMP_NO_BELL"

LOUD = ("stalled", "failed")
CALM = ("starting", "running", "finished", "stopped")
"""States after which the same trouble is news again. One that is out of reach is neither."""

MAX_CHARACTERS = 200

KNOWS_777 = ("rxvt", "foot", "xterm-ghostty")
NO_SEQUENCES = ("", "dumb", "linux")


@dataclass(frozen=True, slots=True)
class Alert:
    """What there is to say."""

    run: str
    state: str
    text: str


class Alerts:
    """Watches all runs of the store; what had gone wrong before anybody watched is no news."""

    def __init__(self) -> None:
        self._since = time.time()
        self._told: dict[str, tuple[int, str]] = {}
        self._known: dict[str, object] = {}

    def news(self, store: Store) -> list[Alert]:
        """Runs that stall or have failed since the last look."""
        return [alert for run in store.runs() for alert in self._look(run)]

    def _look(self, run: RunView) -> Iterable[Alert]:
        key = run.key
        first = run.id not in self._known
        if self._known.get(run.id) == key:
            return
        self._known[run.id] = key
        state, reason = run.standing()
        if state in CALM:
            self._told.pop(run.id, None)
        elif state in LOUD and self._told.get(run.id) != (run.attempt, state):
            self._told[run.id] = (run.attempt, state)
            if not first or run.info.started - run.host.clock_offset > self._since:
                yield Alert(run.id, state, printable(reason))


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants to hear of it."""
    return environment.get(OFF, "") in ("", "0")


def sequence(alert: Alert, environment: Mapping[str, str] = os.environ) -> str:
    """What a terminal is sent for a notification; empty for one that would print it."""
    term = environment.get("TERM", "")
    if term in NO_SEQUENCES:
        return ""
    title = f"encamp: {alert.run} {alert.state}".replace(";", ",")
    text = alert.text.replace(";", ",")[:MAX_CHARACTERS]
    if term.startswith(KNOWS_777) or environment.get("VTE_VERSION"):
        code = f"\x1b]777;notify;{title};{text}\x07"
    else:
        code = f"\x1b]9;{title}: {text}\x07"
    if environment.get("TMUX"):
        # tmux hands on what is wrapped so where its option allow-passthrough says so, and else drops it.
        return "\x1bPtmux;" + code.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return code


def announce(app: EncampApp, alert: Alert) -> None:
    """Say it: by the terminal, unless that is not wanted, and on the screen where another one is open."""
    if enabled():
        app.bell()
        app.write_sequence(sequence(alert))
    if getattr(app.screen, "run_id", None) != alert.run:
        text = f"{alert.run} {alert.state}: {alert.text or 'no reason is known'}  d on it says more."
        app.notify(text, severity="error", timeout=15, markup=False)
