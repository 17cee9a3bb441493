"""The app on real hosts: a run on several of them launched, watched, restarted, stopped by the keyboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from textual.pilot import Pilot
from textual.widgets import Button
from waiting import eventually

from tui.app import EncampApp
from tui.cli.hosts import inventory
from tui.fleet.fleet import Fleet
from tui.fleet.prompts import NoPrompts
from tui.fleet.store import Link, Store
from tui.screens.run import RunScreen

pytestmark = [pytest.mark.sshd, pytest.mark.torch, pytest.mark.timeout(400)]

SECONDS = 90.0
"""What a launch on this machine may take: torch is imported by every rank."""


class Pilots:
    """The app and its keyboard."""

    def __init__(self, app: EncampApp, pilot: Pilot[None], notices: list[str]) -> None:
        self.app = app
        self.pilot = pilot
        self.notices = notices
        """All that were shown: one stays up for a few seconds only, and this machine may be slow."""

    @property
    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    async def sees(self, needle: str) -> None:
        await eventually(lambda: needle in self.text, SECONDS, f"{needle!r} on the screen:\n{self.text}")

    async def told(self, needle: str) -> None:
        await eventually(
            lambda: any(needle in notice for notice in self.notices), SECONDS, f"told {needle!r}"
        )

    async def type(self, word: str) -> None:
        await self.pilot.press(*word, "enter")


@asynccontextmanager
async def app_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pilots]:
    for name in ("ENCAMP_CONFIG_DIR", "ENCAMP_STATE_DIR", "HOME"):
        if name in cluster.camp.env:
            monkeypatch.setenv(name, cluster.camp.env[name])
    fleet = Fleet(inventory(), Store(), NoPrompts())
    fleet.start()
    try:
        app = EncampApp(fleet)
        notices: list[str] = []
        notify = app.notify

        def remember(message: str, **options: Any) -> None:
            notices.append(message)
            notify(message, **options)

        monkeypatch.setattr(app, "notify", remember)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await eventually(
                lambda: all(host.link is Link.LIVE for host in app.store.hosts.values()), SECONDS, "all live"
            )
            yield Pilots(app, pilot, notices)
    finally:
        await fleet.close()


async def launch(driver: Pilots, cluster: Cluster, *names: str) -> None:
    """Mark the hosts in the launch screen, and wait until every rank trains."""
    profiles = Path(cluster.camp.env["ENCAMP_CONFIG_DIR"]) / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    (profiles / "aa-reduce.toml").write_text(Path(cluster.profile("forever")).read_text())
    count = len(names)
    await driver.pilot.press("n")
    await driver.sees(f"{names[0]} would start 1 rank")
    await driver.pilot.press("tab", *("down", "space") * (count - 1))
    await driver.sees(f"{count} hosts would start 1 rank each and meet at {names[0]}")
    driver.app.screen.query_one("#launch", Button).focus()
    await driver.pilot.press("enter")
    await eventually(lambda: isinstance(driver.app.screen, RunScreen), SECONDS, driver.text)
    await driver.sees(f"{count} ranks · {' '.join(names)} · attempt 1")
    for rank in range(count):
        await driver.pilot.press(str(rank))
        await driver.sees(f"rank {rank} of {count} counts {count}")


async def stop(driver: Pilots, cluster: Cluster) -> None:
    """Stop the run, and see that nothing of it is left."""
    await driver.pilot.press("S")
    await driver.type("stop")
    await driver.sees("○ stopped")
    await eventually(cluster.runs_nowhere, SECONDS)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_run_from_launch_to_stop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    names = [f"h{number}" for number in range(1, count + 1)]
    for name in names:
        cluster.add(name)
    async with app_on(cluster, monkeypatch) as driver:
        await launch(driver, cluster, *names)
        await driver.told(f"{count} ranks on ")
        assert all(cluster.ranks_on(name) for name in names)
        await stop(driver, cluster)


@pytest.mark.slow
async def test_a_run_that_goes_on_without_a_lost_host(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add("h1")
    cluster.add("h2")
    async with app_on(cluster, monkeypatch) as driver:
        await launch(driver, cluster, "h1", "h2")

        await driver.pilot.press("r")
        await driver.type("restart")
        await driver.told("attempt 2 has started.")
        await driver.sees("2 ranks · h1 h2 · attempt 2")
        await driver.sees("rank 1 of 2 counts 2")

        cluster.power_cut("h2")
        await driver.sees("h2 cannot be asked")
        await driver.pilot.press("r")
        await driver.sees("it cannot take part now")
        await driver.type("restart")
        await driver.sees("h2 cannot take part")
        await driver.pilot.press("shift+tab", "space", "tab", "enter")
        await driver.told("attempt 3 has started.")
        await driver.sees("1 rank · ")
        await driver.sees("▲ attempt 2")

        cluster.power_on("h2")
        await stop(driver, cluster)
