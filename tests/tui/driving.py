"""Drives the app without a terminal and reads what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_fleet import FakeFleet
from feed import Feed
from textual.pilot import Pilot
from waiting import eventually

from tui.app import EncampApp
from tui.screens.base import BaseScreen


@dataclass
class Driver:
    """The app on a feed, and hands on its keyboard."""

    app: EncampApp
    pilot: Pilot[None]
    fleet: FakeFleet
    feed: Feed

    @property
    def text(self) -> str:
        """The whole screen."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    def line(self, needle: str) -> str:
        """The first line with `needle` in it."""
        found = [line for line in self.text.splitlines() if needle in line]
        assert found, f"no line with {needle!r} in:\n{self.text}"
        return found[0]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        """Type letter by letter."""
        await self.press(*text)

    async def command(self, text: str) -> None:
        """Type a `:` command."""
        await self.press("colon")
        await self.type(text)
        await self.press("enter")

    async def click_text(self, needle: str, times: int = 1) -> None:
        """Click on the first letter of the first `needle` on the screen."""
        lines = self.text.splitlines()
        y, line = next((y, line) for y, line in enumerate(lines) if needle in line)
        await self.pilot.click(offset=(line.index(needle), y), times=times)
        await self.pilot.pause()

    async def refresh(self) -> None:
        """Let the screen look at the store now."""
        screen = self.app.screen
        if isinstance(screen, BaseScreen):
            screen.refresh_now()
        await self.pilot.pause()

    async def sees(self, needle: str, timeout: float = 10.0) -> None:
        """Wait until `needle` is on the screen."""
        await eventually(lambda: needle in self.text, timeout, f"{needle!r} on the screen")

    async def is_told(self, needle: str, timeout: float = 10.0) -> None:
        """Wait until a notification with `needle` in it is up."""
        await eventually(
            lambda: any(needle in notice for notice in self.notices), timeout, f"told {needle!r}"
        )

    @property
    def notices(self) -> list[str]:
        """Texts of all notifications that are up."""
        return [str(notice.message) for notice in self.app._notifications]


@asynccontextmanager
async def driving(
    feed: Feed,
    folder: Path,
    *,
    size: tuple[int, int] = (120, 30),
    theme: str = "",
    kind: type[EncampApp] = EncampApp,
    **options: Any,
) -> AsyncIterator[Driver]:
    """The app on the hosts of `feed`; `options` are those of the app of that `kind`."""
    fleet = FakeFleet(feed, folder)
    app = kind(fleet, **options)  # type: ignore[arg-type]
    if theme:
        app.theme = theme
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield Driver(app, pilot, fleet, feed)
