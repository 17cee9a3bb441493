"""The strategies in the launch dialog: when to choose each, whether the marked hosts can run it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from driving import Driver, driving
from feed import FakeHost, Feed
from waiting import eventually

from tui.fleet.errors import RequestRefused
from tui.screens.launch import LaunchScreen
from tui.screens.strategy import StrategyScreen
from tui.widgets.strategy_list import StrategyField

SCRIPT = '[run]\nscript = "/root/train.py"\nnproc_per_node = 4\n'
TASK = 'description = "a task"\n[run]\ntask = "gpt"\nstrategy = "fsdp"\n'


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    (folder / "aa-task.toml").write_text(TASK)
    (folder / "ab-script.toml").write_text(SCRIPT)
    return folder


def hosts(*gpus: int) -> Feed:
    feed = Feed()
    for name, number in zip("ab", gpus, strict=False):
        feed.add(FakeHost(name, gpus=number, busy=False))
    feed.advance(3)
    return feed


def field(driver: Driver) -> StrategyField:
    return driver.app.screen.query_one(StrategyField)


async def open_list(driver: Driver) -> None:
    """From the profile, where the focus is at first, to the list of strategies."""
    await driver.press("tab", "tab", "enter")
    await eventually(lambda: isinstance(driver.app.screen, StrategyScreen), 10)
    await driver.pilot.pause()


async def choose(driver: Driver, name: str) -> None:
    await open_list(driver)
    screen = driver.app.screen
    assert isinstance(screen, StrategyScreen)
    while screen.list.cursor != name:
        await driver.press("j")
    await driver.press("enter")
    await eventually(lambda: isinstance(driver.app.screen, LaunchScreen), 10)
    await driver.pilot.pause()


async def test_the_field_says_what_the_profile_says_and_whether_it_runs(tmp_path: Path) -> None:
    async with driving(hosts(8), tmp_path, size=(80, 24)) as driver:
        await driver.press("n")
        await driver.sees("● can run here")
        assert "as the profile says: fsdp" in driver.line("strategy")
        await driver.sees("a would start 2 ranks")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_list_has_one_line_a_strategy(tmp_path: Path, size: tuple[int, int]) -> None:
    async with driving(hosts(8), tmp_path, size=size) as driver:
        driver.fleet.sessions["a"].packages = {"tensorflow": "2.21.0"}
        await driver.press("n")
        await driver.sees("● can run here")
        await open_list(driver)
        assert "the profile says so: fsdp" in driver.line("as in the profile")
        assert "● fsdp  " in driver.text
        assert "model and optimizer in shards" in driver.line("● fsdp  ")
        assert "layers split in a host, shards across" in driver.line("● fsdp+tp")
        assert "esc leave" in driver.text
        assert ("yes" in driver.line("● hsdp")) == (size[0] == 200)
        await driver.press("G")
        await driver.press("escape")
        await eventually(lambda: isinstance(driver.app.screen, LaunchScreen), 10)
        assert field(driver).value == ""


async def test_why_one_cannot_run_is_said_before_and_after_it_is_chosen(tmp_path: Path) -> None:
    async with driving(hosts(1), tmp_path, size=(80, 24)) as driver:
        session = driver.fleet.sessions["a"]
        await driver.press("n")
        await driver.sees("● can run here")
        await open_list(driver)
        while driver.app.screen.query_one("#strategies").cursor != "dp":  # type: ignore[attr-defined]
            await driver.press("j")
        assert "✕ dp: needs two GPUs, a has 1: use ddp" in driver.text
        session.refuse["plan"] = session.refuse["launch"] = RequestRefused(
            "x", "In the host's own words.", ""
        )
        await driver.press("enter")
        await driver.sees("✕ cannot run here")
        await driver.sees("✕ dp: needs two GPUs, a has 1: use ddp")
        assert " dp " in driver.line("strategy")
        await driver.sees("In the host's own words.")
        assert driver.app.screen.query_one("#launch").disabled


async def test_a_choice_is_what_the_host_is_asked_for(tmp_path: Path) -> None:
    async with driving(hosts(8), tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("a would start")
        await choose(driver, "ddp")
        assert field(driver).value == "ddp"
        asked = driver.fleet.sessions["a"].asked

        def strategy() -> str:
            specs = [params["spec"] for method, params in asked if method == "launch"]
            return str(specs[-1]["strategy"])

        await eventually(lambda: strategy() == "ddp", 10, "asked about ddp")


async def test_what_is_not_known_yet_is_said_and_the_dialog_goes_on(tmp_path: Path) -> None:
    async with driving(hosts(8), tmp_path, size=(100, 40)) as driver:
        session = driver.fleet.sessions["a"]
        session.probing = asyncio.Event()
        await driver.press("n")
        await driver.sees("? asking a …")
        await driver.sees("a would start 2 ranks")
        await open_list(driver)
        assert "? fsdp: asking a …" in driver.text
        session.probing.set()
        await driver.sees("● fsdp can run here")


async def test_a_host_that_does_not_say_is_no_reason_against_it(tmp_path: Path) -> None:
    async with driving(hosts(8), tmp_path, size=(100, 40)) as driver:
        driver.fleet.sessions["a"].refuse["probe"] = RequestRefused("io", "The host refused it.")
        await driver.press("n")
        await driver.sees("? not known of a")
        await driver.sees("a would start 2 ranks")
        assert not driver.app.screen.query_one("#launch").disabled


async def test_the_python_that_the_profile_names_is_the_one_that_counts(
    tmp_path: Path, profiles: Path
) -> None:
    (profiles / "aa-task.toml").write_text(f'{TASK}python = "~/venv/bin/python"\n')
    (profiles / "ab-script.toml").write_text(f'{TASK}python = "/nowhere/python"\n')
    async with driving(hosts(8), tmp_path, size=(120, 40)) as driver:
        driver.app.launch("aa-task")
        await driver.sees("● can run here")
        await choose(driver, "zero2")
        await driver.sees("● can run here")
        await driver.press("escape")
        driver.app.launch("ab-script")
        await driver.sees("? not known of /nowhere/python on a")


async def test_hosts_that_are_marked_later_are_asked_then(tmp_path: Path) -> None:
    async with driving(hosts(4, 4), tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("● can run here")
        await choose(driver, "tp")
        await driver.sees("● can run here")
        await driver.press("shift+tab", "down", "space")
        await driver.sees("◐ tp: keep it inside a host")


async def test_a_script_is_not_held_to_what_the_trainer_needs(tmp_path: Path) -> None:
    async with driving(hosts(1), tmp_path, size=(100, 40)) as driver:
        driver.app.launch("ab-script")
        await driver.sees("as the profile says: ddp")
        await choose(driver, "fsdp+tp")
        assert "● can run here" in driver.line("strategy")
