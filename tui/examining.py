"""What runs were found to be held up by: who is asked, when again, and what the newest answer is.

The app has one `Examinations`. A screen says which run it shows; asking goes on in the background, and the
screen reads the newest answer at its next look.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .fleet import diagnosis
from .fleet.diagnosis import Report
from .fleet.errors import EncampError
from .fleet.store import RunView

if TYPE_CHECKING:
    from .app import EncampApp

AGAIN_SECONDS = 5.0
"""After an answer about a run that stalls the next question, while somebody looks at it."""

CURRENT_SECONDS = 30.0
"""An older answer says nothing about what goes on now: it may be about an earlier stall."""

KEPT = 16
"""Runs whose last answers are kept."""


@dataclass(eq=False)
class Examination:
    """The newest answer about one run. `received` and `over` are of `time.monotonic()`."""

    report: Report | None = None
    received: float = 0.0
    error: EncampError | None = None
    """Why the last question has no answer; a report then is an older one."""
    asking: bool = False
    over: float | None = None
    """When the last question was answered, well or not."""

    def of(self, run: RunView) -> Report | None:
        """The report, when it is about the attempt that is shown."""
        return self.report if self.report is not None and self.report.attempt == run.attempt else None

    def current(self, run: RunView, now: float) -> Report | None:
        """The report, when it is also new enough to say what goes on now."""
        return self.of(run) if now - self.received <= CURRENT_SECONDS else None

    def since(self, report: Report, now: float) -> float:
        """For how many seconds nothing has gone on, or ago that it ended, at `now`."""
        return report.diagnosis.since_seconds + max(0.0, now - self.received)


class Examinations:
    """All of them, by run."""

    def __init__(self, app: EncampApp) -> None:
        self._app = app
        self._found: dict[str, Examination] = {}

    def of(self, run_id: str) -> Examination:
        """What is known about a run; empty when it was never asked about."""
        return self._found.get(run_id, NOTHING)

    def keep_up(self, run: RunView, now: float) -> Examination:
        """Have the ranks of a run that stalls looked at again when it is time; what is known is returned."""
        found = self.of(run.id)
        old = found.of(run) is None and found.error is None
        due = found.over is None or old or now - found.over >= AGAIN_SECONDS
        if run.state == "stalled" and due:
            self.ask(run)
        return self.of(run.id)

    def ask(self, run: RunView) -> None:
        """Have all ranks of a run looked at now, unless they just are."""
        found = self._found.pop(run.id, None) or Examination()
        self._found[run.id] = found
        for name in list(self._found)[:-KEPT]:
            del self._found[name]
        if not found.asking:
            found.asking = True
            self._app.run_worker(self._ask(found, run), group="examine", exit_on_error=False)

    async def _ask(self, found: Examination, run: RunView) -> None:
        try:
            found.report = await diagnosis.examine(run, self._app.sessions())
            found.received, found.error = time.monotonic(), None
        except EncampError as error:
            found.error = error
        finally:
            found.asking, found.over = False, time.monotonic()


NOTHING = Examination()
"""Of a run that nobody has asked about. Never changed."""
