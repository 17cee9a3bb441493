"""Asks for a password or a passphrase. What is typed is not shown, and never stored."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from .dialog import Dialog, Text


class SecretScreen(Dialog[str]):
    """One secret; esc answers None."""

    def __init__(self, title: str, prompt: str) -> None:
        super().__init__(title)
        self.prompt = prompt

    def body(self) -> ComposeResult:
        """The host's own words and the field."""
        if self.prompt:
            yield Text(self.prompt, classes="paragraph")
        yield Input(password=True, compact=True, classes="apart")
        yield Text("Kept in memory until you leave, to connect again; never written down.", classes="quiet")

    def hint(self) -> str:
        """The way on and the way out."""
        return "enter send · esc go on without it"

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
