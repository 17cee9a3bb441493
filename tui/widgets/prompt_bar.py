"""The line at the bottom in which commands and filters are typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Label

from .lines import Lines
from .toned import Piece

Complete = Callable[[str], Sequence[tuple[str, str]]]
"""From what is typed to (the whole line completed, what it does), best first."""


class _Completions(Suggester):
    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        found = self._complete(value)
        return next((line for line, _ in found if line.startswith(value) and line != value), None)


class _Field(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "cursor_right", "complete", show=False)]


class PromptBar(Horizontal):
    """Hidden until it is opened for a purpose; posts what was typed together with that purpose."""

    DEFAULT_CSS = """
    PromptBar {
        display: none; height: 1; dock: bottom; width: 1fr;
        Label { width: auto; padding: 0 0 0 1; color: $text-primary; }
        _Field { width: 2fr; height: 1; border: none; padding: 0; background: transparent; }
        _Field:focus { border: none; }
        Lines { width: 3fr; height: 1; }
        &.-open { display: block; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "cancel", show=False)]

    @dataclass
    class Changed(Message):
        """The text changed while the bar is open."""

        purpose: str
        text: str

    @dataclass
    class Entered(Message):
        """The text was entered; the bar is closed."""

        purpose: str
        text: str

    @dataclass
    class Cancelled(Message):
        """The bar was closed without entering anything."""

        purpose: str

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self.purpose = ""
        self._complete: Complete = lambda _text: ()

    def compose(self) -> ComposeResult:
        """The sign, the field, and what the text would do."""
        yield Label("", markup=False)
        yield _Field(compact=True, select_on_focus=False)
        yield Lines()

    @property
    def is_open(self) -> bool:
        """Whether something is being typed."""
        return self.has_class("-open")

    def open(self, purpose: str, sign: str, text: str = "", complete: Complete | None = None) -> None:
        """Ask for a line. `sign` stands before it."""
        self.purpose = purpose
        self._complete = complete or (lambda _text: ())
        self.query_one(Label).update(sign)
        field = self.query_one(_Field)
        field.suggester = _Completions(self._complete)
        with self.prevent(Input.Changed):
            field.value = text
        field.cursor_position = len(text)
        self._show_candidates(text)
        self.add_class("-open")
        self.screen.set_focus(field)  # now: the keys that come next are for it

    def close(self) -> None:
        """Hide the bar; the screen gives the focus back."""
        self.remove_class("-open")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self._show_candidates(event.value)
            self.post_message(self.Changed(self.purpose, event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
        self.post_message(self.Entered(self.purpose, event.value))

    def action_close(self) -> None:
        """Leave without doing anything."""
        self.close()
        self.post_message(self.Cancelled(self.purpose))

    def on_descendant_blur(self) -> None:
        """A click elsewhere closes the bar as well."""
        if self.is_open:
            self.action_close()

    def _show_candidates(self, text: str) -> None:
        found = self._complete(text)
        pieces: list[Piece] = []
        for index, (line, help_text) in enumerate(found):
            word = line.split()[-1] if line.split() else line
            pieces += [("  ", ""), (word, "strong" if index == 0 else "quiet")]
            if index == 0:
                pieces.append((f" {help_text}" if help_text else "", "quiet"))
        self.query_one(Lines).show([pieces])
