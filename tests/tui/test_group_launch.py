"""Launching on several hosts from the app: marked in the list, previewed, refused, called off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from driving import Driver, driving
from feed import FakeHost, Feed
from textual.widgets import Button, Input
from waiting import eventually

from tui.fleet.errors import RequestRefused
from tui.screens.launch import LaunchScreen
from tui.screens.run import RunScreen

PROFILE = """
name = "pair"
description = "a plain script"
[run]
strategy = "ddp"
script = "/root/train.py"
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("ENCAMP_STATE_DIR", str(tmp_path / "state"))
    (folder / "aa-pair.toml").write_text(PROFILE.replace("pair", "aa-pair"))
    return folder


def idle() -> Feed:
    feed = Feed()
    for name in ("a", "b", "c"):
        feed.add(FakeHost(name, gpus=2, busy=False))
    feed.advance(3)
    return feed


def methods(driver: Driver, host: str) -> list[str]:
    return [method for method, _ in driver.fleet.sessions[host].asked]


async def mark_two(driver: Driver) -> None:
    """Open the dialog on b, and mark a as well."""
    await driver.press("j", "n")
    await driver.sees("b would start 2 ranks")
    await driver.press("tab", "up", "space")


async def test_hosts_are_marked_in_the_order_of_their_node_ranks(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path, size=(80, 24)) as driver:
        await mark_two(driver)
        await driver.sees("2 hosts would start 2 ranks each and meet at b, 10.0.0.2:29500:")
        await driver.sees("b, ranks 0–1:")
        assert "▐X▌" in driver.line(" a   2 RTX")
        assert "▐ ▌" in driver.line(" c   2 RTX")
        assert "launch      " in driver.text
        assert not {"prepare", "start"} & {*methods(driver, "a"), *methods(driver, "b")}
        assert methods(driver, "c") == []


async def test_a_profile_is_named_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(PROFILE.replace("a plain script", "out of the way"))
    async with driving(idle(), tmp_path) as driver:
        driver.app.launch(str(mine))
        await driver.sees("out of the way")
        await driver.sees("a would start 2 ranks")
        await driver.press("tab", "tab", "tab", "enter")
        assert driver.app.focused is driver.app.screen.query_one("#launch", Button)
        await driver.press("enter")
        await eventually(lambda: "launch" in methods(driver, "a"), 10)
        launched = [params for method, params in driver.fleet.sessions["a"].asked if method == "launch"]
        assert launched[-1]["spec"]["target"] == "/root/train.py"


async def test_no_host_is_marked(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path) as driver:
        await driver.press("n")
        await driver.sees("a would start 2 ranks")
        await driver.press("tab", "space")
        await driver.sees("No host is marked. Mark one or several in the list with space.")
        assert driver.app.screen.query_one("#launch", Button).disabled


async def test_a_launch_on_two_hosts_leads_to_the_run(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path, size=(100, 40)) as driver:
        await mark_two(driver)
        await driver.sees("a, ranks 2–3:")
        await driver.pilot.click("#launch")
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 20)
        await driver.sees("4 ranks · b a · attempt 1")
        await driver.is_told("runs: 4 ranks on b and a.", 20)
        for name in ("a", "b"):
            assert [each for each in methods(driver, name) if each in ("prepare", "start", "confirm")] == [
                "prepare",
                "start",
                "confirm",
            ]


async def test_a_host_that_refuses_is_named_and_nothing_runs(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path, size=(100, 40)) as driver:
        refusal = RequestRefused("gpus-held", "GPU 1 is held by other-run of eve@box.", "Stop that first.")
        driver.fleet.sessions["a"].refuse["prepare"] = refusal
        await mark_two(driver)
        await driver.sees("a, ranks 2–3:")
        await driver.pilot.click("#launch")
        await driver.sees("a: GPU 1 is held by other-run of eve@box.")
        assert isinstance(driver.app.screen, LaunchScreen)
        assert not driver.feed.hosts["b"].runs
        assert not driver.app.screen.query_one("#launch", Button).disabled
        await driver.sees("all the same")


async def test_hosts_that_do_not_reach_each_other(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path, size=(100, 40)) as driver:
        driver.fleet.sessions["a"].cut_off = True
        await mark_two(driver)
        await driver.sees("✕ a cannot reach b")
        assert "or launch on one host." in driver.text
        assert driver.app.screen.query_one("#launch", Button).disabled


async def test_blockers_can_be_overruled_with_a_reason(tmp_path: Path) -> None:
    feed = idle()
    async with driving(feed, tmp_path, size=(100, 40)) as driver:
        session = driver.fleet.sessions["a"]
        facts = session._check({})
        facts["host"]["home"]["error"] = "cannot be written: Read-only file system"
        session.check_answer = facts
        await driver.press("n")
        await driver.sees("✕ a: ")
        screen = driver.app.screen
        assert screen.query_one("#launch", Button).disabled
        screen.query_one("#force", Input).value = "I know this machine"
        await driver.sees("cd /root")
        await driver.pilot.click("#launch")
        await eventually(lambda: "launch" in methods(driver, "a"), 10)
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 20)
        launched = [params for method, params in session.asked if method == "launch"]
        assert launched[-1]["forced"] == "I know this machine"


async def test_a_launch_can_be_called_off(tmp_path: Path) -> None:
    async with driving(idle(), tmp_path, size=(100, 40)) as driver:
        await mark_two(driver)
        await driver.sees("a, ranks 2–3:")
        held = driver.fleet.sessions["a"].held = asyncio.Event()
        await driver.pilot.click("#launch")
        await driver.sees("call it off")
        # Not clicked: it moves down while the hosts' lines appear above it, and a click may miss it.
        driver.app.screen.query_one("#leave", Button).press()
        held.set()
        await driver.sees("It was called off.", 20)
        assert not driver.feed.hosts["a"].runs
        assert not driver.feed.hosts["b"].runs
