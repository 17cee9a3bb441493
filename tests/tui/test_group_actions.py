"""Restart and stop on several hosts: what is asked, shown meanwhile, and said of it afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from driving import Driver, driving
from feed import Feed, two_by_four
from textual.widgets import Input
from waiting import eventually

from tui.fleet import group_restart
from tui.fleet.coordinator import Launched
from tui.fleet.errors import EncampError, RequestRefused
from tui.fleet.members import Member
from tui.fleet.parallel import HostsFailed, Progress
from tui.fleet.store import Link
from tui.screens.going import GoingScreen
from tui.screens.restart import RestartScreen
from tui.screens.run import RunScreen


class Restarts:
    """Stands for the restart itself: notes what it was asked for, and goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[list[str], tuple[str, ...]]] = []
        self.steps: list[int | None] = []
        self.go_on = asyncio.Event()
        self.error: EncampError | None = None
        monkeypatch.setattr(group_restart, "restart", self._restart)

    async def _restart(
        self,
        members: Sequence[Member],
        others: Sequence[Any],
        run: str,
        actor: str,
        *,
        without: Sequence[str],
        resume_step: int | None,
        attempt: int,
        progress: Progress,
    ) -> Launched:
        self.asked.append(([member.name for member in members], tuple(without)))
        self.steps.append(resume_step)
        assert attempt == 1
        progress("vast-a", "stopping")
        progress("vast-b", "stopped, 0 reaped")
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return Launched(run, 2, 4, {})


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> Restarts:
    return Restarts(monkeypatch)


def lost() -> Feed:
    feed = two_by_four()
    feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.", retry_at=time.monotonic() + 8)
    return feed


async def confirm(driver: Driver, word: str) -> None:
    await driver.type(word)
    await driver.press("enter")


async def test_each_host_says_where_it_is(tmp_path: Path, restarts: Restarts) -> None:
    async with driving(two_by_four(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        await driver.press("r")
        assert "all 8 ranks on vast-a and vast-b stop and start again as attempt 2" in " ".join(
            driver.text.replace("│", " ").split()
        )
        assert "nanogpt 3f2c1a9b40" in driver.text
        await confirm(driver, "restart")
        await driver.sees("restarting gpt-0412")
        assert "stopping" in driver.line("◌ vast-a")
        assert "stopped, 0 reaped" in driver.line("◌ vast-b")
        assert restarts.asked == [(["vast-a", "vast-b"], ())]
        restarts.go_on.set()
        await driver.is_told("gpt-0412: attempt 2 has started.")
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 10)


async def test_what_failed_stays_to_be_read(tmp_path: Path, restarts: Restarts) -> None:
    refusal = RequestRefused("gpus-held", "GPU 2 is held by other-run.", "Stop that first.")
    restarts.error = HostsFailed({"vast-b": refusal})
    restarts.go_on.set()
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("r")
        await confirm(driver, "restart")
        await driver.sees("It did not work on all hosts. Stop that first.")
        assert "GPU 2 is held by other-run." in driver.line("✕ vast-b")
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunScreen)


async def test_an_action_that_is_left_goes_on_and_its_end_is_told(tmp_path: Path, restarts: Restarts) -> None:
    restarts.error = EncampError("It did not start.", "Look at its logs.")
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("r")
        await confirm(driver, "restart")
        assert isinstance(driver.app.screen, GoingScreen)
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunScreen)
        restarts.go_on.set()
        await driver.is_told("It did not start. Look at its logs.")


async def test_going_on_without_a_host_is_a_choice_of_its_own(tmp_path: Path, restarts: Restarts) -> None:
    async with driving(lost(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        await driver.press("r")
        assert "vast-b  ▲ unreachable: it cannot take part now" in driver.line("without  ")
        assert "vast-a  live" in driver.text
        await confirm(driver, "restart")
        assert isinstance(driver.app.screen, RestartScreen)
        await driver.sees("vast-b cannot take part: No route to host.")
        assert restarts.asked == []
        await driver.press("shift+tab", "space", "tab")
        await driver.sees("Attempt 2: all 4 ranks on vast-a")
        await driver.press("enter")
        await driver.sees("restarting gpt-0412")
        assert restarts.asked == [(["vast-a", "vast-b"], ("vast-b",))]
        restarts.go_on.set()
        await driver.is_told("has started")


async def test_a_host_that_comes_back_meanwhile_takes_part(tmp_path: Path, restarts: Restarts) -> None:
    feed = lost()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("r")
        feed.store.set_link("vast-b", Link.LIVE)
        await confirm(driver, "restart")
        await eventually(lambda: bool(restarts.asked), 10)
        assert restarts.asked == [(["vast-a", "vast-b"], ())]
        restarts.go_on.set()


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_an_older_checkpoint_is_chosen(
    tmp_path: Path, restarts: Restarts, size: tuple[int, int]
) -> None:
    async with driving(two_by_four(), tmp_path, size=size, start_run="gpt-0412") as driver:
        for session in driver.fleet.sessions.values():
            session.checkpoints = [100, 200]
        await driver.press("r")
        await driver.sees("It goes on from step-200, complete on vast-a and vast-b")
        await driver.sees("Lost at most: 41 steps")
        assert "the newest, now step-200" in driver.line("checkpoint ")
        await driver.press("shift+tab", "shift+tab", "enter", "down", "enter")
        await driver.sees("It goes on from step-100")
        await driver.sees("Lost: 141 steps")
        assert "step-200 is set aside" in " ".join(driver.text.split())
        driver.app.screen.query_one(Input).focus()
        await confirm(driver, "restart")
        await eventually(lambda: bool(restarts.asked), 10)
        assert (restarts.asked, restarts.steps) == ([(["vast-a", "vast-b"], ())], [100])
        restarts.go_on.set()


async def test_the_question_follows_the_run_for_as_long_as_it_stands(
    tmp_path: Path, restarts: Restarts
) -> None:
    feed = two_by_four()
    async with driving(feed, tmp_path, size=(120, 36), start_run="gpt-0412") as driver:
        sessions = driver.fleet.sessions.values()
        for session in sessions:
            session.checkpoints = [100]
        await driver.press("r")
        await driver.sees("It goes on from step-100")
        assert "attempt 1 running · started " in driver.line("now  ")
        for session in sessions:
            session.checkpoints = [100, 200]
        await driver.type("restart")
        for name in ("vast-a", "vast-b"):
            feed.change_run(name, "gpt-0412", state="finished", ended=feed.time)
        await driver.sees("Meanwhile that has changed: attempt 1 is finished now.")
        assert "attempt 1 finished · ran for " in driver.line("now  ")
        assert "start again as attempt 2" in driver.text and "stop and" not in driver.text
        await driver.sees("It goes on from step-200")
        await driver.sees("the newest, now step-200")
        await driver.press("enter")
        await eventually(lambda: bool(restarts.asked), 10)
        restarts.go_on.set()


async def test_a_host_in_trouble_is_named_and_can_be_left_out(tmp_path: Path, restarts: Restarts) -> None:
    feed = two_by_four()
    node = feed.store.hosts["vast-b"].runs["gpt-0412"]
    node.ranks[6].sample = dataclasses.replace(node.ranks[6].sample, process_state="D")
    async with driving(feed, tmp_path, size=(120, 36), start_run="gpt-0412") as driver:
        await driver.press("r")
        await driver.sees("Rank 6 on vast-b hangs in the kernel (D)")
        assert "mark vast-b below" in " ".join(driver.text.replace("│", " ").split())
        assert "vast-b  ▲ rank 6 in the kernel (D), may not end" in driver.line("without  ")
        await driver.press("shift+tab", "space", "tab")
        await driver.sees("Attempt 2: all 4 ranks on vast-a")
        assert "Rank 6 on vast-b" not in driver.text
        await confirm(driver, "restart")
        await eventually(lambda: bool(restarts.asked), 10)
        assert restarts.asked == [(["vast-a", "vast-b"], ("vast-b",))]
        restarts.go_on.set()


async def test_no_host_is_left(tmp_path: Path, restarts: Restarts) -> None:
    feed = lost()
    feed.store.set_link("vast-a", Link.UNREACHABLE, "No route to host.")
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("r")
        await driver.press("shift+tab", "space", "down", "space", "tab")
        await confirm(driver, "restart")
        assert "No host of it is left to go on." in driver.text


def stops(driver: Driver, name: str) -> list[str]:
    return [method for method, _ in driver.fleet.sessions[name].asked if method == "stop"]


async def test_a_stop_reaches_all_hosts(tmp_path: Path) -> None:
    async with driving(two_by_four(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("S")
        assert "all 8 ranks on vast-a and vast-b end" in driver.text
        await confirm(driver, "stop")
        await driver.is_told("gpt-0412: stopped, all its processes are gone.")
        assert (stops(driver, "vast-a"), stops(driver, "vast-b")) == (["stop"], ["stop"])


async def test_a_stop_says_where_it_could_not(tmp_path: Path) -> None:
    async with driving(lost(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("S")
        assert "▲ vast-b unreachable" in driver.text
        await confirm(driver, "stop")
        await driver.sees("gpt-0412 was stopped on vast-a; not on vast-b")
        assert "encamp stop gpt-0412" in driver.text
        assert stops(driver, "vast-a") == ["stop"]


async def test_ranks_of_an_older_attempt_are_stopped_as_well(tmp_path: Path) -> None:
    feed = two_by_four()
    feed.change_run("vast-a", "gpt-0412", attempt=2, nodes=(), world_size=4)
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("S")
        assert "vast-b live · attempt 1 still lives there" in driver.text
        await confirm(driver, "stop")
        await driver.is_told("all its processes are gone")
        assert (stops(driver, "vast-a"), stops(driver, "vast-b")) == (["stop"], ["stop"])


async def test_a_run_that_is_gone_when_the_word_is_typed(tmp_path: Path) -> None:
    feed = two_by_four()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("S")
        feed.store.remove_host("vast-a")
        feed.store.remove_host("vast-b")
        await confirm(driver, "stop")
        await driver.is_told("No host knows a run gpt-0412.")
