"""A run on several hosts on the screen: which host, in all that is shown and done."""

from __future__ import annotations

import time
from pathlib import Path

from driving import Driver, driving
from feed import Feed, three_by_eight, two_by_four

from tui.fleet.store import Link
from tui.run_facts import LAUNCHER
from tui.screens.logs import LogsScreen
from tui.screens.run import RunScreen
from tui.widgets.log_pane import LogPane
from tui.widgets.rank_table import RankTable


def screen(driver: Driver) -> RunScreen:
    assert isinstance(driver.app.screen, RunScreen)
    return driver.app.screen


def shown_log(driver: Driver) -> object:
    return screen(driver).query_one(LogPane)._shown


def unreachable() -> Feed:
    feed = two_by_four()
    feed.store.hosts["vast-b"].received -= 40
    feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.", retry_at=time.monotonic() + 8)
    return feed


async def test_ranks_say_where_they_are_and_the_log_follows(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        assert "8 ranks · vast-a vast-b · attempt 1" in driver.line("encamp")
        assert "HOST" in driver.line("RANK")
        assert screen(driver).query_one(RankTable).rows == [*range(8), LAUNCHER, LAUNCHER - 1]
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "rank0")
        await driver.press("5")
        assert shown_log(driver) == ("vast-b", "gpt-0412", 1, "rank5")
        await driver.press("G")
        assert "launcher on vast-b" in driver.text
        assert shown_log(driver) == ("vast-b", "gpt-0412", 1, "launcher")
        await driver.press("k")
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "launcher")
        assert "vast-a  ●" not in driver.text, "hosts that are all well need no line each"


async def test_what_code_it_runs_is_shown(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, size=(120, 40), start_run="gpt-0412") as driver:
        assert "nanogpt 3f2c1a9b40 (3f2c1a9 with changes)" in driver.line("code")


async def test_the_shell_is_that_of_the_selected_rank(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        said: list[str] = []
        driver.app.shell = said.append  # type: ignore[method-assign]
        await driver.press("s", "6", "s")
        assert said == ["vast-a", "vast-b"]


async def test_a_host_that_cannot_be_asked_has_a_line_and_the_key_connects_to_it(tmp_path: Path) -> None:
    async with driving(unreachable(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        assert "✕ unreachable" in driver.text
        assert "vast-b cannot be asked; ranks may go on there." in driver.text
        assert "● running" in driver.line("vast-a  ")
        assert "last seen 4" in driver.line("vast-b  ")
        assert driver.text.splitlines()[-1].startswith(" c connect now")
        await driver.press("c")
        assert driver.fleet.sessions["vast-b"].retries == 1
        assert driver.fleet.sessions["vast-a"].retries == 0


async def test_a_failure_on_one_host_is_shown_while_the_others_still_live(tmp_path: Path) -> None:
    feed = three_by_eight()
    reason = "rank 11 (GPU 3) ended with exit code 1."
    feed.end_run("runpod-2", "llama-ft", "failed", {11: 1}, reason=reason, exit_code=1)
    async with driving(feed, tmp_path, size=(100, 40), start_run="llama-ft") as driver:
        assert "✕ failed" in driver.text
        assert "runpod-2: rank 11 (GPU 3) ended with exit code 1." in driver.text
        assert "● running" in driver.line("runpod-3  ")
        assert screen(driver).rank == 11
        assert shown_log(driver) == ("runpod-2", "llama-ft", 1, "rank11")
        assert " S stop" in driver.text.splitlines()[-1]


async def test_an_older_attempt_that_lives_on_is_said(tmp_path: Path) -> None:
    feed = two_by_four()
    feed.change_run("vast-a", "gpt-0412", attempt=2, nodes=(), world_size=4)
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        assert "▲ attempt 1" in driver.line("vast-b  ")
        feed.change_run("vast-a", "gpt-0412", state="finished", ended=feed.time)
        await driver.refresh()
        assert " S stop" in driver.text.splitlines()[-1], "something of it lives still"


async def test_another_machine_at_an_address_of_the_run(tmp_path: Path) -> None:
    feed = two_by_four()
    feed.hosts["vast-b"].seed = 99
    from feed import hello

    from agent import wire

    feed.store.apply("vast-b", hello(feed.hosts["vast-b"], feed.time))
    feed.store.apply("vast-b", wire.Ready())
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        assert "vast-b was replaced" in driver.text
        assert "✕ replaced" in driver.line("vast-b  ")


async def test_hosts_say_which_node_of_a_run_they_are(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, size=(80, 24)) as driver:
        assert "1 run ·" in driver.line("encamp") or "· 1 run" in driver.line("encamp")
        assert "gpt-0412 1/2" in driver.line("vast-a")
        assert "gpt-0412 2/2" in driver.line("vast-b")
        await driver.press("j", "space")
        assert "node 2 of 2 of gpt-0412: ranks 4–7, with vast-a" in driver.text
        assert "rank 4" in driver.text


async def test_the_list_of_runs_has_it_once_with_all_hosts(tmp_path: Path) -> None:
    async with driving(unreachable(), tmp_path) as driver:
        await driver.press("R")
        lines = [line for line in driver.text.splitlines() if "gpt-0412" in line]
        assert len(lines) == 1
        assert "vast-a vast-b" in lines[0]
        assert "unreachable" in lines[0]
        await driver.press("slash")
        await driver.type("vast-b")
        await driver.press("enter")
        assert "gpt-0412" in driver.text


async def test_all_logs_of_all_hosts(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, size=(160, 30), start_run="gpt-0412") as driver:
        await driver.press("5", "l")
        assert isinstance(driver.app.screen, LogsScreen)
        assert driver.app.screen.query_one(LogPane)._shown == ("vast-b", "gpt-0412", 1, "rank5")
        await driver.press("3")
        assert driver.app.screen.query_one(LogPane)._shown == ("vast-a", "gpt-0412", 1, "rank3")
        await driver.press("m")
        await driver.sees("launcher vast-b")
        await driver.press("q", "G", "l")
        assert isinstance(driver.app.screen, LogsScreen)
        assert driver.app.screen.query_one(LogPane)._shown == ("vast-b", "gpt-0412", 1, "launcher")
