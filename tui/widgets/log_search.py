"""The line above a log in which a search is typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for, literally. Case counts only when the text has capitals."""

    text: str

    @property
    def ignore_case(self) -> bool:
        """Whether `error` also finds `Error`."""
        return self.text == self.text.lower()

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Finds it in a line of text; None for an empty query, which finds nothing."""
        return (
            re.compile(re.escape(self.text), re.IGNORECASE if self.ignore_case else 0) if self.text else None
        )


class _Field(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel", show=False)]

    def action_leave(self) -> None:
        self.post_message(LogSearch.Left())


class LogSearch(Horizontal):
    """Hidden until it is opened."""

    DEFAULT_CSS = """
    LogSearch {
        display: none; height: 1; width: 1fr;
        Label { width: auto; padding: 0 0 0 1; color: $text-primary; }
        _Field, _Field:focus { width: 1fr; height: 1; border: none; padding: 0; background: transparent; }
        &.-open { display: block; }
    }
    """

    @dataclass
    class Typed(Message):
        """The text changed."""

        query: Query

    @dataclass
    class Entered(Message):
        """The search is to be made; the owner closes the line."""

        query: Query

    class Left(Message):
        """No search; the owner closes the line."""

    def compose(self) -> ComposeResult:
        """The sign and the field."""
        yield Label("/", markup=False)
        field = _Field(compact=True, select_on_focus=False)
        field.can_focus = False  # until it is opened: screens focus what comes first
        yield field

    @property
    def is_open(self) -> bool:
        """Whether a search is being typed."""
        return self.has_class("-open")

    def open(self) -> None:
        """Ask for a text."""
        field = self.query_one(_Field)
        with self.prevent(Input.Changed):
            field.value = ""
        self.add_class("-open")
        field.can_focus = True
        self.screen.set_focus(field)

    def close(self) -> None:
        """Hide the line."""
        self.remove_class("-open")
        self.query_one(_Field).can_focus = False

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Typed(Query(event.value)))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Entered(Query(event.value)))

    def on_descendant_blur(self) -> None:
        """A click elsewhere leaves the line as well."""
        if self.is_open:
            self.post_message(self.Left())
