"""Which host or run is meant: by its name, the beginning of it, or what the screens show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fleet.errors import UsageError
from .fleet.store import HostView, RunView
from .screens.diagnosis import DiagnosisScreen
from .screens.fleet import FleetScreen
from .screens.logs import LogsScreen
from .screens.run import RunScreen
from .screens.runs import RunsScreen
from .screens.timeline import TimelineScreen

if TYPE_CHECKING:
    from .app import EncampApp


def host(app: EncampApp, name: str) -> HostView:
    """The host of that name; without one, the host under the cursor. Raises UsageError."""
    if not name and isinstance(app.screen, FleetScreen) and app.screen.host is not None:
        return app.screen.host
    found = app.store.hosts.get(name)
    if found is None:
        known = ", ".join(list(app.store.hosts)[:8]) or "none yet: :add adds one"
        raise UsageError(f"There is no host {name!r}." if name else "Which host?", f"There is {known}.")
    return found


def run(app: EncampApp, run_id: str) -> RunView:
    """The run of that name or prefix; without one, the run shown here. Raises UsageError."""
    run_id = run_id or _shown_run(app)
    if not run_id:
        raise UsageError("Which run?", "Name it: a unique prefix is enough.")
    found = app.store.find_run(run_id)
    if found is not None:
        return found
    begun = [run for run in app.store.runs() if run.id.startswith(run_id)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(f"{run_id} may be {', '.join(run.id for run in begun[:8])}.", "Type more of it.")
    raise UsageError(f"No host knows a run {run_id}.", ":runs shows what there is.")


def run_and_rank(app: EncampApp, text: str) -> tuple[RunView, int | None]:
    """A run and perhaps one of its ranks, as in `gpt 3`. Raises UsageError."""
    words = text.split()
    found = run(app, words[0] if words else "")
    if len(words) < 2:
        return found, None
    if not words[1].isdecimal():
        raise UsageError(f"{words[1]} is not the number of a rank.", "As in :logs RUN 3.")
    return found, int(words[1])


def _shown_run(app: EncampApp) -> str:
    for screen in reversed(app.screen_stack):
        if isinstance(screen, (RunScreen, LogsScreen, DiagnosisScreen, TimelineScreen)):
            return screen.run_id
        if isinstance(screen, RunsScreen):
            return screen.table.cursor or ""
        if isinstance(screen, FleetScreen) and screen.host is not None:
            facts = screen.table.facts(screen.host)
            return facts.run.id if facts.run is not None else ""
    return ""
