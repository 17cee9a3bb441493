"""Paging through what a run has been through: which stall or attempt is shown, and what is known of it.

A screen steps back and forth; what is to be asked for that goes on in the background, and the screen reads
what is known at its next look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fleet import stall_records
from .fleet.diagnosis import Report
from .fleet.errors import EncampError
from .fleet.stall_records import Page
from .fleet.store import RunView

if TYPE_CHECKING:
    from .app import EncampApp

Place = tuple[int, float | None]
"""Which page: its attempt and time. Its records may become more."""


class LookingBack:
    """The pages of one run. `page` is the one that is shown, None: how the run is now."""

    def __init__(self, app: EncampApp) -> None:
        self._app = app
        self._pages: tuple[Page, ...] = ()
        self._found: dict[Place, Report | EncampError] = {}
        self._asking: set[Place] = set()
        self._learning = False
        self.page: Page | None = None

    @property
    def several(self) -> bool:
        """Whether there is anything to page through."""
        return len(self._pages) > 1

    @property
    def report(self) -> Report | None:
        """The page that is shown, once it was read."""
        found = self._found.get(_place(self.page)) if self.page is not None else None
        return found if isinstance(found, Report) else None

    @property
    def error(self) -> EncampError | None:
        """Why it cannot be read."""
        found = self._found.get(_place(self.page)) if self.page is not None else None
        return found if isinstance(found, EncampError) else None

    def position(self) -> tuple[int, int]:
        """The number of the page that is shown, and of how many."""
        return self._index() + 1, len(self._pages)

    def learn(self, run: RunView) -> None:
        """Find out what there is."""
        if not self._learning:
            self._learning = True
            self._app.run_worker(self._learn(run), group="pages", exit_on_error=False)

    def step(self, run: RunView, pages: int) -> None:
        """Go so many pages forward, or back."""
        if not self._pages:
            return
        index = max(0, min(len(self._pages) - 1, self._index() + pages))
        self.page = None if index == len(self._pages) - 1 else self._pages[index]
        page = self.page
        if page is None or self.report is not None or _place(page) in self._asking:
            return
        self._asking.add(_place(page))
        self._app.run_worker(self._read(run, page), group="pages", exit_on_error=False)

    def _index(self) -> int:
        places = list(map(_place, self._pages))
        last = len(self._pages) - 1
        return places.index(_place(self.page)) if self.page and _place(self.page) in places else last

    async def _learn(self, run: RunView) -> None:
        try:
            self._pages = await stall_records.pages(run, self._app.sessions())
        except EncampError:
            pass  # then there is only now; a host that comes back changes the run's state
        finally:
            self._learning = False

    async def _read(self, run: RunView, page: Page) -> None:
        try:
            self._found[_place(page)] = await stall_records.read(run, self._app.sessions(), page)
        except EncampError as error:
            self._found[_place(page)] = error
        finally:
            self._asking.discard(_place(page))


def _place(page: Page) -> Place:
    return page.attempt, page.time
