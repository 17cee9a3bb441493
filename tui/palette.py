"""Hosts and runs in the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from . import commands

if TYPE_CHECKING:
    from .app import EncampApp


class FleetProvider(Provider):
    """Finds runs to open and hosts to connect to."""

    def _entries(self) -> Iterator[tuple[str, str, str]]:
        """(what is shown and searched, what it does, the command)."""
        store = cast("EncampApp", self.app).store
        for run in store.runs():
            yield f"run {run.id}", f"{run.state} on {', '.join(run.hosts)}", f"run {run.id}"
        for view in store.hosts.values():
            yield f"connect {view.name}", f"{view.link.value} · {view.address}", f"connect {view.name}"

    async def discover(self) -> Hits:
        """Runs, before anything is typed."""
        for text, help_text, command in self._entries():
            if command.startswith("run "):
                yield DiscoveryHit(
                    text, partial(commands.run, cast("EncampApp", self.app), command), help=help_text
                )

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for text, help_text, command in self._entries():
            score = matcher.match(text)
            if score > 0:
                run = partial(commands.run, cast("EncampApp", self.app), command)
                yield Hit(score, matcher.highlight(text), run, text=text, help=help_text)
