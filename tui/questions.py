"""Puts what connections have to ask before the user, one question at a time.

Sessions call these methods from their own tasks, several perhaps at once. Each question waits its turn; one
whose asker has gone in the meantime is taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from textual.app import App
from textual.message import Message

from .fleet.hosts import Host
from .screens.dialog import Dialog
from .screens.host_key import HostKeyScreen
from .screens.secret import SecretScreen


@dataclass
class _Question:
    screen: Dialog[Any]
    answer: asyncio.Future[Any]


class Questions:
    """`Prompts` by dialogs of `app`."""

    class Next(Message):
        """It is time to look whether a question can be shown or has to be taken back."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._waiting: deque[_Question] = deque()
        self._shown: _Question | None = None
        self._closed = False

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        """Whether this key of a host never seen before is the right one; leaving the dialog refuses it."""
        return bool(await self._ask(HostKeyScreen(host, key_type, fingerprint)))

    async def password(self, host: Host, prompt: str) -> str | None:
        """The answer to `prompt`, the host's own words."""
        answer: str | None = await self._ask(SecretScreen(f"password for {host.address}", prompt))
        return answer

    async def passphrase(self, host: Host, path: str) -> str | None:
        """The passphrase of the private key at `path`."""
        screen = SecretScreen(f"passphrase of {path}", f"needed to connect to {host.name}")
        answer: str | None = await self._ask(screen)
        return answer

    async def _ask(self, screen: Dialog[Any]) -> Any:
        if self._closed:
            return None
        question = _Question(screen, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        self._app.post_message(self.Next())
        try:
            return await question.answer
        finally:
            self._app.post_message(self.Next())

    def go_on(self) -> None:
        """Show the next question if none is shown; take back one that nobody waits for. For the app alone."""
        shown = self._shown
        if shown is not None:
            if shown.answer.done() and shown.screen.is_attached and shown.screen.is_current:
                shown.screen.dismiss(None)
            return
        while self._waiting:
            question = self._waiting.popleft()
            if not question.answer.done():
                self._show(question)
                return

    def _show(self, question: _Question) -> None:
        self._shown = question
        self._app.push_screen(question.screen, lambda answer: self._answered(question, answer))

    def _answered(self, question: _Question, answer: Any) -> None:
        self._shown = None
        if not question.answer.done():
            question.answer.set_result(answer)
        self._app.post_message(self.Next())

    def close(self) -> None:
        """Answer everything with no: the app is leaving."""
        self._closed = True
        for question in [*self._waiting, *([self._shown] if self._shown is not None else [])]:
            if not question.answer.done():
                question.answer.set_result(None)
        self._waiting.clear()
