"""The pre-flight on the screen: what it shows at which size, when it asks again, and how it is opened."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest
from driving import Driver, driving
from fakes.checks import GIB, MIB, PYTHON, answer
from feed import FakeHost, Feed, small
from waiting import eventually

from tui.fleet.errors import RequestRefused
from tui.fleet.store import Link
from tui.screens.check import CheckScreen, Findings


async def checked(driver: Driver) -> CheckScreen:
    """Wait until the screen has a report and nothing goes on."""
    screen = driver.app.screen
    assert isinstance(screen, CheckScreen)
    await eventually(lambda: screen.report is not None and "◌" not in driver.text, message="a report")
    await driver.refresh()
    return screen


def two_hosts() -> Feed:
    feed = Feed()
    feed.add(FakeHost("vast-a"))
    feed.add(FakeHost("vast-b"))
    feed.advance(3)
    return feed


def make_bad(driver: Driver, host: str) -> None:
    torch = {**PYTHON, "torch": None}
    driver.fleet.sessions[host].check_answer = answer(
        4,
        pythons=[torch],
        shm={"total_bytes": 64 * MIB},
        cpu={"affinity": 384, "usable": 46.0},
        disk={"used_bytes": 495 * GIB},
    )


async def test_p_checks_the_host_under_the_cursor(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("p")
        await checked(driver)
        assert "fleet › check › vast-a" in driver.text
        assert "● ok" in driver.line("8 × RTX 4090")
        assert driver.line(" vast-a   ok")
        assert "throughput" not in driver.text, "there is nothing between one host"
        await driver.press("escape")
        assert "check" not in driver.text.splitlines()[0]


async def test_trouble_comes_first_with_its_way_out(tmp_path: Path) -> None:
    async with driving(two_hosts(), tmp_path, size=(80, 24)) as driver:
        make_bad(driver, "vast-a")
        await driver.command("check vast-a")
        await checked(driver)
        lines = driver.text.splitlines()
        assert "1 blocker · 3 warnings" in lines[0]
        assert "✕ blocker" in lines[3]
        assert "no Python imports torch" in lines[3]
        assert "→" in driver.text
        assert "◐ warning" in driver.text
        assert driver.line("warning  shm")
        assert max(map(len, lines)) <= 80
        assert all(
            word in " ".join(driver.text.split()) for word in ("-m pip install torch;", "--shm-size=8g;")
        )


async def test_several_hosts_are_judged_together(tmp_path: Path) -> None:
    async with driving(two_hosts(), tmp_path, size=(120, 50)) as driver:
        driver.fleet.sessions["vast-b"].cut_off = True
        driver.fleet.sessions["vast-b"].clock_ahead = 3600
        await driver.command("check vast-a vast-b")
        await checked(driver)
        assert "vast-b does not reach vast-a (10.0.0.1: no route to host)" in driver.line(
            "✕ blocker  network"
        )
        assert "60 min ahead of ours" in driver.text
        assert "together   1 blocker" in driver.text
        assert driver.line("from \\ to").split() == ["from", "\\", "to", "vast-a", "vast-b"]
        rows = [line.split("  ") for line in driver.text.splitlines() if "0.2 ms" in line]
        assert len(rows) == 1
        assert "Gbit" not in driver.text, "nothing is sent unless that is wanted"
        driver.fleet.sessions["vast-b"].cut_off = False
        await driver.press("t")
        await driver.sees("9.4 Gbit/s at least")
        assert "together   ok" in driver.text


async def test_a_narrow_screen_has_a_line_for_each_way(tmp_path: Path) -> None:
    feed = Feed()
    for number in range(5):
        feed.add(FakeHost(f"a-host-with-a-name-{number}"))
    async with driving(feed, tmp_path, size=(80, 140)) as driver:
        await driver.command("check " + " ".join(feed.hosts))
        await checked(driver)
        assert "from \\ to" not in driver.text
        assert driver.line("a-host-with-a-name-0 → a-host-with-a-name-4   0.2 ms")


async def test_the_last_report_stays_with_its_age_while_another_is_made(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("p")
        screen = await checked(driver)
        session = driver.fleet.sessions["vast-a"]
        session.held = asyncio.Event()
        make_bad(driver, "vast-a")
        await driver.press("r")
        await driver.sees("◌ asking the host")
        assert "8 × RTX 4090" in driver.text
        assert "s old" in driver.text.splitlines()[0]
        before = screen.report
        session.held.set()
        await eventually(lambda: screen.report is not before)
        await driver.sees("1 blocker")
        await driver.press("escape", "p")
        assert "1 blocker" in driver.text, "it is shown at once when the screen is opened again"


async def test_hosts_that_cannot_be_asked_are_findings(tmp_path: Path) -> None:
    feed = two_hosts()
    feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.", "Is it on?")
    async with driving(feed, tmp_path, size=(120, 40)) as driver:
        old = RequestRefused("unknown-method", "this agent knows no 'check'", "update encamp")
        driver.fleet.sessions["vast-a"].refuse["check"] = old
        await driver.command("check vast-a vast-b")
        await checked(driver)
        assert "vast-b is not connected" in driver.text
        assert "this agent knows no 'check'" in driver.line("✕ blocker  connection")


async def test_a_host_without_sense_is_a_finding_and_its_text_is_harmless(tmp_path: Path) -> None:
    async with driving(two_hosts(), tmp_path, size=(120, 40)) as driver:
        driver.fleet.sessions["vast-a"].check_answer = {"time": "noon"}
        driver.fleet.sessions["vast-b"].check_answer = answer(
            2, provisioning="\x1b]0;owned\x07/.prov\u202eisioning", hostname="x" * 2000
        )
        await driver.command("check vast-a vast-b")
        await checked(driver)
        assert "makes no sense" in driver.text
        assert "/.provisioning exists" in driver.text
        assert "owned" not in driver.text


async def test_a_host_that_is_removed_meanwhile_ends_nothing(tmp_path: Path) -> None:
    async with driving(two_hosts(), tmp_path) as driver:
        await driver.press("p")
        await checked(driver)
        await driver.fleet.remove("vast-a")
        await driver.press("r")
        await driver.is_told("There is no host vast-a.")
        assert isinstance(driver.app.screen, CheckScreen)


async def test_names_that_are_none_are_refused(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.command("check vast-a nowhere")
        await driver.is_told("There is no host 'nowhere'.")
        assert not isinstance(driver.app.screen, CheckScreen)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_it_scrolls_by_the_keys_of_tables(tmp_path: Path, size: tuple[int, int]) -> None:
    async with driving(small(), tmp_path, size=size) as driver:
        make_bad(driver, "vast-a")
        await driver.command("check vast-a vast-b hetzner-1")
        await checked(driver)
        view = driver.app.screen.query_one(Findings)
        assert view.has_focus
        await driver.press("G")
        await eventually(lambda: view.scroll_y == view.max_scroll_y > 0, message="the end")
        await driver.press("g")
        await eventually(lambda: view.scroll_y == 0, message="the beginning")


async def test_it_is_offered_in_read_only_mode_and_ages(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, read_only=True) as driver:
        await driver.press("p")
        screen = await checked(driver)
        assert screen.report is not None
        older = dataclasses.replace(screen.report, at=time.time() - 200)
        driver.app.reports[screen.names] = older
        await driver.refresh()
        assert "3 min old" in driver.text.splitlines()[0]
