"""What all full screens share: header, footer, the command line, and a tick that redraws what changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from .. import commands
from ..fleet.store import Store
from ..widgets.key_bar import KeyBar
from ..widgets.lines import Header
from ..widgets.prompt_bar import PromptBar
from ..widgets.toned import Piece

if TYPE_CHECKING:
    from ..app import EncampApp

TICK_SECONDS = 0.25
"""How often a visible screen looks at the store."""


OPENING = ("command_line", "filter")
"""Actions that open a line to type in, by keys that can be typed into one."""


class BaseScreen(Screen[None]):
    """A screen that shows a part of the store."""

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "q,escape", "back", "back", show=False, id="screen.back", tooltip="back to where I came from"
        ),
        # With priority: it is done before the next key is sent on its way, which then finds the line open.
        Binding(
            "colon",
            "command_line",
            "command",
            id="screen.command",
            key_display=":",
            tooltip="type a command",
            priority=True,
        ),
        Binding(
            "question_mark",
            "help",
            "keys",
            id="screen.help",
            key_display="?",
            tooltip="the keys that work here",
        ),
    ]

    @property
    def encamp(self) -> EncampApp:
        """The app, with what it offers to screens."""
        return cast("EncampApp", self.app)

    @property
    def store(self) -> Store:
        """Everything there is to show."""
        return self.encamp.store

    # --- what a screen says ------------------------------------------------------------------------------

    def body(self) -> ComposeResult:
        """The widgets between header and footer."""
        raise NotImplementedError

    def update(self, now: float) -> None:
        """Redraw what changed. `now` is `time.monotonic()`."""
        raise NotImplementedError

    def crumbs(self) -> Sequence[str]:
        """Where I am."""
        raise NotImplementedError

    def headline(self) -> list[list[Piece]]:
        """What matters most, least important part first; the clock comes after it."""
        return []

    def keys(self) -> Sequence[str]:
        """Ids of the bindings that matter most here, for the last line."""
        return ()

    def home(self) -> Widget | None:
        """The widget that has the focus when nothing else does."""
        return None

    # --- what they share ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Header, body, footer, and the command line that takes the footer's place."""
        yield Header()
        yield from self.body()
        yield KeyBar([*self.keys(), "screen.command", "screen.help"])
        yield PromptBar()

    def on_mount(self) -> None:
        """Start looking at the store."""
        self.set_interval(TICK_SECONDS, self._tick)
        self.refresh_now()
        self._focus_home()

    def on_screen_resume(self) -> None:
        """Show what changed while another screen was on top."""
        self.refresh_now()

    def _tick(self) -> None:
        if self.is_current:
            self.refresh_now()

    def refresh_now(self) -> None:
        """Look at the store now instead of at the next tick."""
        now = time.monotonic()
        self.update(now)
        clock: list[Piece] = [(time.strftime("%H:%M:%S"), "")]
        if self.encamp.read_only:
            clock.insert(0, ("read only  ", "quiet"))
        self.query_one(Header).put(self.crumbs(), [*self.headline(), clock])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What can be done: no second line opened while one is typed, read-only nothing changed."""
        if action in OPENING and isinstance(self.focused, Input):
            return False
        if self.encamp.read_only and action in commands.MUTATING_ACTIONS:
            return False
        return super().check_action(action, parameters)

    def action_back(self) -> None:
        """Leave this screen."""
        self.encamp.back()

    def action_help(self) -> None:
        """Show the keys that work here."""
        self.encamp.show_help()

    def action_command_line(self, text: str = "") -> None:
        """Type a command."""
        self.open_prompt("command", ":", text, lambda typed: commands.complete(self.encamp, typed))

    def do(self, command: str) -> None:
        """Do what a `:` command does; what it refuses is shown."""
        commands.run(self.encamp, command)

    def open_prompt(
        self, purpose: str, sign: str, text: str = "", complete: commands.Complete | None = None
    ) -> None:
        """Ask for a line in the footer's place."""
        self.query_one(KeyBar).display = False
        self.query_one(PromptBar).open(purpose, sign, text, complete)

    def _close_prompt(self) -> None:
        self.query_one(KeyBar).display = True
        self._focus_home()

    def _focus_home(self) -> None:
        home = self.home()
        if home is not None:
            home.focus()

    @on(PromptBar.Entered)
    def _entered(self, event: PromptBar.Entered) -> None:
        self._close_prompt()
        if event.purpose == "command":
            self.do(event.text)
        else:
            self.entered(event.purpose, event.text)

    @on(PromptBar.Cancelled)
    def _cancelled(self, event: PromptBar.Cancelled) -> None:
        self._close_prompt()
        self.cancelled(event.purpose)

    def entered(self, _purpose: str, _text: str) -> None:
        """A line that the screen asked for was entered."""

    def cancelled(self, _purpose: str) -> None:
        """A line that the screen asked for was not entered."""
