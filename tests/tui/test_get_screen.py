"""Fetching files of a run from the app: what there is, on which host, how far it is, stopped and gone on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from driving import Driver, driving
from feed import two_by_four
from textual.widgets import Input, OptionList
from waiting import eventually

from tui.fleet.store import Link
from tui.screens.get import GetScreen
from tui.screens.run import RunScreen

MODEL = os.urandom(700_000)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the user is."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """The runs' folders: all checkpoints are on the first host, the second has an empty folder for them."""
    for step in (9, 10, 100):
        folder = tmp_path / "runs-of" / "vast-a" / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(MODEL)
    (tmp_path / "runs-of" / "vast-b" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs-of" / "vast-b" / "notes.txt").write_text("only here")
    return tmp_path / "runs-of"


def listed(driver: Driver) -> list[str]:
    entries = driver.app.screen.query_one("#entries", OptionList)
    return [str(entries.get_option_at_index(at).id) for at in range(entries.option_count)]


async def opened(driver: Driver) -> GetScreen:
    await driver.press("D")
    assert isinstance(driver.app.screen, GetScreen)
    return driver.app.screen


async def test_the_newest_checkpoint_stands_first_and_is_fetched(
    tmp_path: Path, hosts: Path, here: Path
) -> None:
    async with driving(two_by_four(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        await opened(driver)
        await eventually(lambda: listed(driver) == ["step-100", "step-10", "step-9"], 10)
        assert "vast-a" in driver.line("step-100/")
        await driver.press("tab", "enter")
        await eventually(lambda: listed(driver) == ["model.pt"], 10)
        assert driver.app.screen.query_one("#path", Input).value == "checkpoints/step-100/"
        await driver.press("enter")
        await driver.is_told("step-100: 1 file, 684 K, verified, from vast-a.")
        assert (here / "step-100" / "model.pt").read_bytes() == MODEL
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 10)


async def test_what_is_typed_narrows_the_list_down(tmp_path: Path, hosts: Path, here: Path) -> None:
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        screen = await opened(driver)
        await eventually(lambda: len(listed(driver)) == 3, 10)
        await driver.type("step-1")
        await eventually(lambda: listed(driver) == ["step-100", "step-10"], 10)
        await driver.type("7")
        await driver.sees("Nothing in checkpoints begins so.")
        screen.query_one("#path", Input).value = ""
        await eventually(lambda: listed(driver) == ["checkpoints", "notes.txt"], 10)
        await driver.sees("notes.txt")
        assert "vast-b" in driver.line("notes.txt")
        screen.query_one("#path", Input).value = "../"
        await driver.sees("is not a path in the run's folder.")


async def test_the_host_that_has_it_is_asked(tmp_path: Path, hosts: Path, here: Path) -> None:
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await driver.command("get gpt-0412 notes.txt")
        assert isinstance(driver.app.screen, GetScreen)
        driver.app.screen.query_one("#dest", Input).value = "mine.txt"
        await driver.press("enter")
        await driver.is_told("mine.txt: 1 file, 9 B, verified, from vast-b.")
        assert (here / "mine.txt").read_text() == "only here"


async def test_nothing_is_overwritten(tmp_path: Path, hosts: Path, here: Path) -> None:
    (here / "notes.txt").write_text("mine")
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await driver.command("get gpt-0412 notes.txt")
        await driver.press("enter")
        await driver.sees("exists here already and is another one.")
        assert (here / "notes.txt").read_text() == "mine"
        await driver.command("x")
        assert isinstance(driver.app.screen, GetScreen)


async def test_a_download_that_is_stopped_keeps_what_has_come(
    tmp_path: Path, hosts: Path, here: Path
) -> None:
    async with driving(two_by_four(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        screen = await opened(driver)
        screen.query_one("#path", Input).value = "checkpoints/step-9"
        await eventually(lambda: listed(driver) == ["step-9"], 10)
        session = driver.fleet.sessions["vast-a"]
        session.held = asyncio.Event()
        await driver.press("enter")
        await driver.sees("stop")
        await driver.pilot.click("#leave")
        await driver.sees("What has come is kept")
        assert not (here / "step-9").exists() or not (here / "step-9" / "model.pt").exists()
        session.held.set()
        session.held = None
        await driver.pilot.click("#get")
        await driver.is_told("verified, from vast-a.")


async def test_it_goes_on_when_the_dialog_is_left(tmp_path: Path, hosts: Path, here: Path) -> None:
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        screen = await opened(driver)
        screen.query_one("#path", Input).value = "checkpoints/step-9"
        await eventually(lambda: listed(driver) == ["step-9"], 10)
        held = driver.fleet.sessions["vast-a"].held = asyncio.Event()
        await driver.press("enter", "escape")
        assert isinstance(driver.app.screen, RunScreen)
        held.set()
        await driver.is_told("step-9: 1 file, 684 K, verified, from vast-a.")


async def test_no_host_of_it_is_connected(tmp_path: Path, hosts: Path, here: Path) -> None:
    feed = two_by_four()
    for name in ("vast-a", "vast-b"):
        feed.store.set_link(name, Link.UNREACHABLE, "No route.")
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await opened(driver)
        await driver.sees("No host of the run is connected.")
        await driver.press("enter")
        await driver.sees("✕ No host of the run is connected.")


async def test_names_that_lead_elsewhere_are_not_offered(tmp_path: Path, hosts: Path, here: Path) -> None:
    (hosts / "vast-a" / "checkpoints" / "evil\x1b[2J").write_text("x")
    (hosts / "vast-a" / "checkpoints" / "link").symlink_to("/etc")
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await opened(driver)
        await eventually(lambda: listed(driver) == ["step-100", "step-10", "step-9"], 10)
