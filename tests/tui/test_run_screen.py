"""One run on the screen: its state, its curves, its ranks, and the log that follows the selection."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from driving import Driver, driving
from feed import FakeHost, Feed, cpu_demo, ranks, small
from waiting import eventually

from agent import wire
from tui.fleet.store import Link
from tui.run_facts import LAUNCHER
from tui.screens.diagnosis import DiagnosisScreen
from tui.screens.logs import LogsScreen
from tui.screens.restart import RestartScreen
from tui.screens.run import RunScreen
from tui.widgets.graph import Graph
from tui.widgets.log_pane import LogPane
from tui.widgets.rank_table import RankTable


def screen(driver: Driver) -> RunScreen:
    assert isinstance(driver.app.screen, RunScreen)
    return driver.app.screen


def shown_log(driver: Driver) -> object:
    return screen(driver).query_one(LogPane)._shown


async def test_two_ranks_without_gpus(tmp_path: Path) -> None:
    async with driving(cpu_demo(), tmp_path, size=(80, 24), start_run="gpt-0412") as driver:
        assert "fleet › gpt-0412" in driver.line("encamp")
        assert "2 ranks · ddp · attempt 1" in driver.line("encamp")
        assert "● running" in driver.text
        assert "step 241" in driver.line("running")
        title = driver.line("tokens/s")
        for word in ("loss 2.", "0–6", "tokens/s 4", "0–500 k", "CPU ", "0–100"):
            assert word in title
        head = driver.line("RANK")
        for word in ("CPU", "RSS", "STEP", "s/STEP", "PROCESS", "AGE"):
            assert word in head
        assert "GPU" not in head
        assert "launcher" in driver.text
        await driver.sees("rank 0 log")
        await driver.sees("step 599 loss")
        assert driver.text.splitlines()[-1].startswith(" l logs")


async def test_ranks_on_gpus(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(160, 50), start_run="gpt-0412") as driver:
        head = driver.line("RANK")
        for word in ("GPU", "UTIL", "POWER", "MEMORY", "CPU", "RSS"):
            assert word in head
        line = next(line for line in driver.text.splitlines() if line.startswith("▌●    0"))
        for word in (" %", "█", "21.8/24 G", "train", " s"):
            assert word in line
        assert "GPU 9" in driver.line("tokens/s")


@pytest.mark.parametrize(("size", "told"), [((140, 40), True), ((80, 24), False), ((60, 40), True)])
async def test_how_training_goes_has_a_line_where_there_is_room(
    tmp_path: Path, size: tuple[int, int], told: bool
) -> None:
    feed = small()
    feed.change_run("vast-a", "gpt-0412", strategy="hsdp")
    feed.hosts["vast-a"].training["gpt-0412"] = wire.Training("hsdp", "bf16", 8, 8, 1, 1, 2, 64, 8, 1, 900)
    feed.advance()
    record: wire.Record = {"step": 243, "mfu": 0.384, "data_wait": 0.02, "grad_norm": 0.81, "loss_scale": 8.0}
    feed.store.apply("vast-a", wire.Progress("gpt-0412", 1, 0, (record,)))
    async with driving(feed, tmp_path, size=size, start_run="gpt-0412") as driver:
        assert "step 243 of 900" in driver.line("running")
        assert ("MFU  38 %" in driver.text) == told
        assert ("loss scale" in driver.text) == (size[0] == 140), "what does not fit is left out whole"
        if size[0] >= 80:
            assert "hsdp 2 copies × 4 shards" in driver.line("encamp")


async def test_sixty_four_ranks_leave_room_for_the_log(tmp_path: Path) -> None:
    feed = Feed()
    feed.add(FakeHost("big", gpus=0, cores=128))
    feed.run("big", "wide", ranks=64)
    feed.advance(5)
    async with driving(feed, tmp_path, size=(80, 24), start_run="wide") as driver:
        table = screen(driver).query_one(RankTable)
        assert len(table.rows) == 65
        assert table.size.height <= 10
        assert screen(driver).query_one(LogPane).size.height >= 5
        await driver.press("G")
        assert table.cursor == LAUNCHER
        assert "launcher" in driver.text
        await driver.press("k")
        assert table.cursor == 63


async def test_one_selection_drives_everything(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "rank0")
        await driver.press("j")
        assert screen(driver).rank == 1
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "rank1")
        await driver.press("5")
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "rank5")
        await driver.press("G")
        assert shown_log(driver) == ("vast-a", "gpt-0412", 1, "launcher")
        await driver.press("l")
        assert isinstance(driver.app.screen, LogsScreen)
        assert driver.app.screen.stream == "launcher"
        await driver.press("q")
        assert screen(driver).rank == LAUNCHER


async def test_enter_opens_the_log_of_the_rank(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("2", "enter")
        assert isinstance(driver.app.screen, LogsScreen)
        assert driver.app.screen.stream == "rank2"


async def test_the_log_can_be_searched_and_followed_from_the_ranks(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        await driver.sees("step 599 loss")
        pane = screen(driver).query_one(LogPane)
        assert pane.following
        await driver.press("slash")
        await driver.type("step 123 ")
        await driver.press("enter")
        await driver.sees("step 123 loss")
        assert not pane.following
        screen(driver).query_one(RankTable).focus()
        await driver.press("f")
        await driver.sees("step 599 loss")
        assert pane.following


async def test_a_run_that_starts_shows_the_launcher_and_then_its_first_rank(tmp_path: Path) -> None:
    feed = cpu_demo()
    feed.run("demo-2", "new", ranks=2, state="starting")
    async with driving(feed, tmp_path, start_run="new") as driver:
        assert "◌ starting" in driver.text
        assert "0 of 2 ranks have started." in driver.text
        assert screen(driver).rank == LAUNCHER
        feed.change_run("demo-2", "new", state="running")
        feed.advance(1)
        await driver.refresh()
        assert screen(driver).rank == 0
        assert "● running" in driver.text


async def test_a_failed_run_says_why_and_what_next(tmp_path: Path) -> None:
    feed = small()
    reason = "rank 3 (GPU 3) ended with exit code 1: RuntimeError: CUDA out of memory. " * 2
    info = feed.hosts["vast-a"].runs["gpt-0412"]
    taken = ranks(feed.hosts["vast-a"], info, feed.tick, feed.time)
    samples = list(taken.ranks)
    samples[3] = dataclasses.replace(samples[3], state="exited", exit_code=1, pid=None)
    samples[4] = dataclasses.replace(samples[4], state="exited", exit_code=-15)
    samples[5] = dataclasses.replace(samples[5], state="lost")
    feed.store.apply("vast-a", dataclasses.replace(taken, ranks=tuple(samples)))
    feed.change_run(
        "vast-a", "gpt-0412", state="failed", reason=reason, exit_code=1, ended=feed.start + 725,
    )  # fmt: skip
    async with driving(feed, tmp_path, size=(90, 30), start_run="gpt-0412") as driver:
        line = driver.line("✕ failed")
        assert "after 12 min 05 s (exit 1)" in line
        assert "CUDA out of memory" in driver.text
        assert "d diagnose   l logs   r restart as attempt 2" in driver.text
        assert "exit 1" in next(line for line in driver.text.splitlines() if line.startswith("▌✕    3"))
        assert next(line for line in driver.text.splitlines() if "signal 15" in line).startswith(" ○    4")
        assert screen(driver).rank == 3
        assert "lost" in driver.text
        assert "S stop" not in driver.text
        await driver.press("0")
        await driver.refresh()
        assert screen(driver).rank == 0


async def test_a_selection_of_the_user_outlives_a_failure_and_a_restart(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("5")
        feed.end_run("vast-a", "gpt-0412", "failed", {3: 1}, exit_code=1)
        await driver.refresh()
        assert screen(driver).rank == 5
        feed.change_run("vast-a", "gpt-0412", attempt=2, state="running", ended=None)
        await driver.refresh()
        assert screen(driver).rank == LAUNCHER
        feed.advance(1)
        await driver.refresh()
        assert screen(driver).rank == 5
        assert shown_log(driver) == ("vast-a", "gpt-0412", 2, "rank5")


async def test_a_finished_run_shows_duration_and_a_stopped_one_who_did_it(tmp_path: Path) -> None:
    feed = small()
    feed.change_run("vast-a", "gpt-0412", state="finished", exit_code=0, ended=feed.start + 60)
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        assert "○ finished" in driver.text
        assert "after 1 min 00 s" in driver.text
        assert "exit code 0" in driver.text
        feed.change_run("vast-a", "gpt-0412", state="stopped", reason="Stopped by me@laptop.")
        await driver.refresh()
        assert "○ stopped" in driver.text
        assert "Stopped by me@laptop." in driver.text


async def test_a_lost_host_is_said_and_can_be_called(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        feed.store.set_link("vast-a", Link.UNREACHABLE, "No route.")
        await driver.refresh()
        assert "✕ unreachable" in driver.text
        assert "It goes on without us." in driver.text
        assert "c connect now" in driver.text.splitlines()[-1]
        await driver.press("c")
        assert driver.fleet.sessions["vast-a"].retries == 1


async def test_a_run_that_nobody_knows(tmp_path: Path) -> None:
    feed = Feed()
    feed.add(FakeHost("slow"), Link.CONNECTING)
    async with driving(feed, tmp_path, start_run="gone") as driver:
        assert "No host that answers knows the run gone." in driver.text
        assert "Not heard of yet: slow." in driver.text
        feed.store.set_link("slow", Link.LIVE)
        feed.run("slow", "gone")
        await driver.refresh()
        assert "● running" in driver.text
        await driver.press("q")
        assert not isinstance(driver.app.screen, RunScreen)


async def test_a_new_attempt_starts_its_curves_and_its_log_anew(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        loss = screen(driver).query_one("#loss", Graph)
        assert loss.label == "0–6"
        feed.change_run("vast-a", "gpt-0412", attempt=2)
        feed.store.apply("vast-a", wire.Progress("gpt-0412", 2, 0, ({"step": 1, "loss": 0.7},)))
        await driver.refresh()
        assert loss.label == "0–0.8"
        assert "attempt 2" in driver.line("encamp")
        assert shown_log(driver) == ("vast-a", "gpt-0412", 2, "launcher")


async def test_a_range_grows_visibly_and_never_shrinks(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, size=(160, 40), start_run="gpt-0412") as driver:
        loss = screen(driver).query_one("#loss", Graph)

        async def reports(step: int, value: wire.Scalar) -> None:
            feed.store.apply(
                "vast-a",
                wire.Progress("gpt-0412", 1, 0, ({"step": step, "loss": value, "tokens_per_second": 1},)),
            )
            await driver.refresh()

        await reports(300, 9.5)
        assert loss.label == "0–10"
        assert "now 0–10" in driver.text
        assert {tone for text, tone in loss._title(60) if "now 0–10" in text} == {"degraded"}
        await reports(310, 0.1)
        assert loss.label == "0–10"
        await reports(320, "nan")
        assert "loss nan" in driver.text
        assert {tone for text, tone in loss._title(60) if "nan" in text} == {"trouble"}


async def test_the_curves_begin_where_the_run_did_and_not_where_we_came(tmp_path: Path) -> None:
    feed = small()
    run = feed.store.hosts["vast-a"].runs["gpt-0412"]
    run.progress.clear()
    run.progress_rank = None
    async with driving(feed, tmp_path) as driver:
        session = driver.app.fleet.session("vast-a")
        session.past = [{"time": step, "step": step, "loss": 9.0 / step} for step in range(1, 30)]
        driver.app.show_run("gpt-0412")
        await driver.sees("0–10")
        assert len(run.progress) == 29
        await driver.refresh()
        assert session.recalled == 1
        hello = feed.store.hosts["vast-a"].hello
        assert hello is not None
        feed.store.apply("vast-a", dataclasses.replace(hello, time=1.0))
        await eventually(lambda: session.recalled == 2)


async def test_a_script_that_reports_nothing_has_its_pace_drawn(tmp_path: Path) -> None:
    feed = small()
    run = feed.store.hosts["vast-a"].runs["gpt-0412"]
    run.progress.clear()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        assert "loss" not in driver.line("steps/s")
        assert "steps/s 2." in driver.text


async def test_what_a_rank_reports_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    feed = small()
    evil = "\x1b[2J\x1b]0;owned\x07[red]phase"
    info = feed.hosts["vast-a"].runs["gpt-0412"]
    taken = ranks(feed.hosts["vast-a"], info, feed.tick, feed.time)
    samples = tuple(dataclasses.replace(rank, phase=evil, process_state=evil) for rank in taken.ranks)
    feed.store.apply("vast-a", dataclasses.replace(taken, ranks=samples))
    feed.change_run("vast-a", "gpt-0412", reason=evil, strategy=evil)
    feed.store.apply("vast-a", wire.Progress("gpt-0412", 1, 0, ({"step": 900, "loss": evil},)))
    async with driving(feed, tmp_path, size=(200, 50), start_run="gpt-0412") as driver:
        assert all(line.isprintable() for line in driver.text.splitlines())
        assert "owned" not in driver.text


# --- acting ------------------------------------------------------------------------------------------------


async def test_a_restart_says_the_truth_and_wants_the_word(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, start_run="gpt-0412") as driver:
        await driver.press("r")
        assert isinstance(driver.app.screen, RestartScreen)
        assert "all 8 ranks on vast-a stop and start again as attempt 2" in driver.text
        await driver.sees("Lost at most: 241 steps")
        await driver.press("enter")
        assert "that is not the word restart" in driver.text
        assert driver.fleet.sessions["vast-a"].asked == []
        await driver.type("restart")
        await driver.press("enter")
        await driver.is_told("gpt-0412: attempt 2 has started.")
        assert [method for method, _ in driver.fleet.sessions["vast-a"].asked] == ["spec", "restart"]
        await driver.refresh()
        assert "attempt 2" in driver.line("encamp")


async def test_leaving_the_question_leaves_the_run(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        for key in ("r", "S"):
            await driver.press(key)
            await driver.type("no")
            await driver.press("escape")
            assert isinstance(driver.app.screen, RunScreen)
        assert driver.fleet.sessions["vast-a"].asked == []


async def test_a_stop_wants_the_word(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("S")
        await driver.type("stop")
        await driver.press("enter")
        await driver.sees("○ stopped")
        method, params = driver.fleet.sessions["vast-a"].asked[0]
        assert (method, params["run"]) == ("stop", "gpt-0412")
        assert "@" in params["actor"]
        await driver.is_told("all its processes are gone")


async def test_a_refusal_is_one_line_with_a_hint(tmp_path: Path) -> None:
    from tui.fleet.errors import RequestRefused

    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        refusal = RequestRefused("busy", "The run is being restarted.", "Wait for it.\x1b[2J")
        driver.fleet.sessions["vast-a"].refuse["restart"] = refusal
        await driver.press("r")
        await driver.type("restart")
        await driver.press("enter")
        await driver.sees("The run is being restarted. Wait for it.")
        assert all(line.isprintable() for line in driver.text.splitlines())


async def test_no_single_key_and_no_control_key_does_harm(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, start_run="gpt-0412") as driver:
        await driver.press("ctrl+c", "ctrl+d", "ctrl+k", "ctrl+b", "x", "d", "delete", "backspace", "X")
        asked = {method for method, _ in driver.fleet.sessions["vast-a"].asked}
        assert asked <= {"evidence", "events"}, "d looks, and changes nothing"
        assert isinstance(driver.app.screen, DiagnosisScreen)
        assert driver.app.is_running
