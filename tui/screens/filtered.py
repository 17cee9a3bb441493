"""Screens whose one table can be narrowed down with `/`."""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual import on
from textual.binding import Binding, BindingType

from ..widgets.prompt_bar import PromptBar
from .base import BaseScreen


class Filterable(Protocol):
    """A table that shows only what matches `filter`."""

    filter: str


class FilteredScreen(BaseScreen):
    """The filter follows what is typed, stays when it is entered, and goes with esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "filter",
            "filter",
            id="here.filter",
            key_display="/",
            tooltip="show only what matches; ! before it inverts",
            priority=True,
        ),
    ]

    @property
    def filtered(self) -> Filterable:
        """The table."""
        raise NotImplementedError

    def action_filter(self) -> None:
        """Show only what matches what is typed."""
        self.open_prompt("filter", "/", self.filtered.filter)

    def action_back(self) -> None:
        """Undo the filter; without one, leave."""
        if self.filtered.filter:
            self._filter("")
        else:
            self.encamp.back()

    @on(PromptBar.Changed)
    def _filter_changed(self, event: PromptBar.Changed) -> None:
        if event.purpose == "filter":
            self._filter(event.text)

    def entered(self, _purpose: str, text: str) -> None:
        """Keep the filter."""
        self._filter(text)

    def cancelled(self, purpose: str) -> None:
        """Show everything again."""
        if purpose == "filter":
            self._filter("")

    def _filter(self, text: str) -> None:
        self.filtered.filter = text
        self.refresh_now()
