"""A log with its title and its search: what screens put on themselves to show one stream of a run.

The pane owns the feed's task and looks at it ten times a second; it draws nothing itself. Fetching and
searching run in workers that post messages; only the pane's handlers touch widgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.worker import Worker, WorkerState

from ..fleet.errors import EncampError
from ..fleet.log_feed import LogFeed
from ..fleet.log_source import Condition, LogSession, LogSource, SessionSource
from . import log_status
from .lines import Lines
from .log_canvas import Prefix
from .log_search import LogSearch, Query
from .log_view import LogView

if TYPE_CHECKING:
    from ..app import EncampApp

FLUSH_SECONDS = 0.1
"""How often the screen takes in what came."""


class LogPane(Vertical):
    """Shows one log at a time; `show` and `show_source` may be called again and again."""

    DEFAULT_CSS = """
    LogPane { height: 1fr; width: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority: the keys that come next are for the search.
        Binding(
            "slash",
            "search",
            "search",
            id="log.search",
            key_display="/",
            tooltip="search; n and N go on",
            priority=True,
        ),
        Binding("n", "find(1)", "next match", show=False, id="log.next", tooltip="next match"),
        Binding("N", "find(-1)", "previous match", show=False, id="log.previous", tooltip="previous match"),
        Binding("escape", "clear", "clear", show=False, id="log.clear", tooltip="nothing marked, no search"),
    ]

    class Fetched(Message, bubble=False):
        """The feed has something new that somebody waits for."""

        def can_replace(self, message: Message) -> bool:
            """One is enough."""
            return isinstance(message, LogPane.Fetched)

    @dataclass
    class Searched(Message, bubble=False):
        """A search is over, or so far on its way."""

        query: Query
        backward: bool
        found: int | None = None
        scanned_to: int | None = None
        """How far it is; None when it is over."""
        error: str = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.feed: LogFeed | None = None
        self.query_text: Query | None = None
        self._shown: object = None
        self._worker: Worker[None] | None = None
        self._note = ""
        self._noted_at: object = None
        self._searching = False
        self._prefix: tuple[Prefix, int] | None = None

    def compose(self) -> ComposeResult:
        """Title, or the search in its place, and the log."""
        yield Lines(id="log-title")
        yield LogSearch()
        yield LogView()

    @property
    def view(self) -> LogView:
        """The log itself."""
        return self.query_one(LogView)

    # --- which log ------------------------------------------------------------------------------------

    def show(self, host: str | LogSession, run: str, attempt: int, stream: str) -> None:
        """Show a stream of an attempt; `host` is a session or a host's name. Showing it again is free."""
        if self._shown == (host, run, attempt, stream):
            return
        session = cast("EncampApp", self.app).fleet.session(host) if isinstance(host, str) else host
        self.show_source(SessionSource(session, run, attempt, stream))
        self._shown = (host, run, attempt, stream)

    def show_source(self, source: LogSource, *, prefix: Prefix | None = None, prefix_width: int = 0) -> None:
        """Show any log. `prefix` says what stands before a line."""
        self._stop()
        self._shown = source
        self._say("")
        self._prefix = (prefix, prefix_width) if prefix is not None else None
        self.feed = LogFeed(source, on_fetched=self._fetched)
        if self.is_mounted:
            self._start()

    def clear(self) -> None:
        """Show nothing."""
        self._stop()
        self._shown = self.feed = None
        if self.is_mounted:
            self.view.show(None)
            self._flush()

    def _start(self) -> None:
        prefix, width = self._prefix if self._prefix is not None else (None, 0)
        self.view.show(self.feed, prefix=prefix, prefix_width=width)
        self._flush()

    def _stop(self) -> None:
        self._stop_search()
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None

    def on_mount(self) -> None:
        """Begin to look."""
        self.set_interval(FLUSH_SECONDS, self._flush)
        if self.feed is not None:
            self._start()

    @property
    def _in_view(self) -> bool:
        """Whether the pane can be seen: its screen is on top, but for dialogs."""
        for screen in reversed(self.app.screen_stack):
            if screen is self.screen:
                return True
            if not screen.is_modal:
                return False
        return False

    @on(Worker.StateChanged)
    def _feed_ended(self, event: Worker.StateChanged) -> None:
        """Say so when the feed failed in a way that nobody foresaw."""
        if event.worker is self._worker and event.state is WorkerState.ERROR:
            self._say(f"encamp failed to read this log: {event.worker.error!r}")

    # --- looking --------------------------------------------------------------------------------------

    def _fetched(self) -> None:
        self.post_message(self.Fetched())

    @on(Fetched)
    def _flush(self) -> None:
        """Show what came since the last look."""
        if self.feed is None:
            self.query_one("#log-title", Lines).show([])
            return
        if not self._in_view:
            self._stop()  # nobody looks: it goes on where it is when the screen comes back
            return
        if self._worker is None:
            self._worker = self.run_worker(self.feed.run(), group="log-feed", exit_on_error=False)
        condition = self.feed.condition()
        self.view.look(log_status.empty(self.feed, condition))
        self._show_title(condition)

    def _show_title(self, condition: Condition) -> None:
        assert self.feed is not None
        reader = self.view.reader
        if reader is not None:
            if self._note and not self._searching and self._noted_at != reader.place:
                self._say("")  # the reader went on
            title = log_status.title(self.feed, reader, condition, self._note, self.size.width)
            self.query_one("#log-title", Lines).show([title])

    def on_resize(self) -> None:
        """The title is as wide as the pane."""
        self._flush()

    def _say(self, note: str) -> None:
        """Say something in the title until the reader goes on."""
        self._note = note
        self._noted_at = self.view.reader.place if self.is_mounted and self.view.reader is not None else None

    # --- searching ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape means something only while there is something to clear, `/` is typed into a search."""
        if action == "clear":
            return self._searching or self.view.marked
        if action == "search":
            return not self.query_one(LogSearch).is_open
        return super().check_action(action, parameters)

    def action_clear(self) -> None:
        """Stop searching, mark nothing, highlight nothing."""
        self._stop_search()
        self.view.unmark()
        self._flush()

    def _stop_search(self) -> None:
        self.workers.cancel_group(self, "log-search")
        if self._searching:
            self._searching = False
            self._say("")

    def action_search(self) -> None:
        """Ask what to search for, in the title's place: the log does not move."""
        self.query_one("#log-title").display = False
        self.query_one(LogSearch).open()

    def _close_search(self) -> None:
        self.query_one(LogSearch).close()
        self.query_one("#log-title").display = True
        self.view.focus()

    @on(LogSearch.Typed)
    def _typed(self, event: LogSearch.Typed) -> None:
        event.stop()
        self.view.highlight(event.query.pattern)

    @on(LogSearch.Left)
    def _left(self, event: LogSearch.Left) -> None:
        event.stop()
        self._close_search()
        self.view.highlight(self.query_text.pattern if self.query_text is not None else None)

    @on(LogSearch.Entered)
    def _entered(self, event: LogSearch.Entered) -> None:
        event.stop()
        self._close_search()
        if event.query.text:
            self.query_text = event.query
        reader = self.view.reader
        if self.query_text is not None and reader is not None:
            # At the end there is nothing further down: what was asked for is above.
            self._search(backward=reader.following, skip=False)

    def action_find(self, direction: int) -> None:
        """Go to the next or the previous match."""
        if self.query_text is None:
            self.action_search()
        else:
            self._search(backward=direction < 0, skip=True)

    def _search(self, *, backward: bool, skip: bool) -> None:
        """Look for the query from the reader's line on, or, to `skip` it, from beside it."""
        reader = self.view.reader
        if self.feed is None or reader is None or reader.here is None or self.query_text is None:
            return
        self.view.highlight(self.query_text.pattern)
        item = reader.window.item_at(min(reader.here, reader.window.size - 1))
        self._searching = True
        # Forward finds from an offset on, backward before it: to skip a line is to begin at its other end.
        self._find(self.feed, self.query_text, item.start if backward is skip else item.end, backward)

    @work(exclusive=True, group="log-search", exit_on_error=False)
    async def _find(self, feed: LogFeed, query: Query, offset: int, backward: bool) -> None:
        def progress(scanned_to: int) -> None:
            self.post_message(self.Searched(query, backward, scanned_to=scanned_to))

        try:
            found = await feed.find(
                query.text, offset, backward=backward, ignore_case=query.ignore_case, on_progress=progress
            )
            self.post_message(self.Searched(query, backward, found))
        except EncampError as error:
            self.post_message(self.Searched(query, backward, error=error.message))

    @on(Searched)
    def _searched(self, event: Searched) -> None:
        event.stop()
        if event.query != self.query_text or not self._searching:
            return
        self._searching = event.scanned_to is not None
        if event.scanned_to is not None:
            self._say(log_status.searching(event.scanned_to, event.backward))
        elif event.found is not None:
            self._say("")
            self.view.jump(event.found)
        elif event.error:
            self._say(f"not in what is loaded, and the rest cannot be searched: {event.error}")
        else:
            where, key = ("above", "n") if event.backward else ("below", "N")
            self._say(f"no match {where} · {key} looks the other way")
        self._flush()

    @property
    def following(self) -> bool:
        """Whether the end of the log is shown as it grows."""
        reader = self.view.reader
        return reader is not None and reader.following
