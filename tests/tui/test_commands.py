"""The `:` commands, their completion, the palette, the help, and read-only mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import driving
from feed import Feed, cpu_demo, small, troubled
from textual.command import CommandPalette
from textual.events import Key
from textual.keys import _character_to_key as character_to_key
from textual.widgets import Input
from waiting import eventually

from tui import commands
from tui.demo_app import DemoApp
from tui.screens.add_host import AddHostScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.dialog import Dialog
from tui.screens.fleet import FleetScreen
from tui.screens.help import HelpScreen
from tui.screens.host_key import HostProblemScreen
from tui.screens.launch import LaunchScreen
from tui.screens.logs import LogsScreen
from tui.screens.restart import RestartScreen
from tui.screens.run import RunScreen
from tui.screens.runs import RunsScreen
from tui.widgets.log_search import LogSearch
from tui.widgets.prompt_bar import PromptBar
from tui.widgets.run_table import RunTable


async def test_every_command_leads_where_it_says(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path) as driver:
        app = driver.app
        for text, screen in (
            ("runs", RunsScreen),
            ("run gpt-0412", RunScreen),
            ("run llama", RunScreen),
            ("logs gpt-0412 3", LogsScreen),
            ("hosts", FleetScreen),
            ("key runpod-9", HostProblemScreen),
            ("add ssh -p 1 root@h", AddHostScreen),
            ("launch", LaunchScreen),
            ("restart gpt-0412", RestartScreen),
            ("stop gpt-0412", ConfirmScreen),
            ("remove vast-a", ConfirmScreen),
            ("help", HelpScreen),
        ):
            await driver.command(text)
            assert isinstance(app.screen, screen), text
            if isinstance(app.screen, (Dialog, HelpScreen)):
                await driver.press("escape")
        await driver.command("connect runpod-2")
        assert driver.fleet.sessions["runpod-2"].retries == 1
        await driver.command("theme nord")
        assert app.theme == "nord"
        await driver.command("quit")
    assert not app.is_running


async def test_commands_mean_what_is_shown_when_nothing_is_named(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("j")
        await driver.command("logs")
        screen = driver.app.screen
        assert isinstance(screen, LogsScreen)
        assert (screen.run_id, screen.stream) == ("vit-large", "rank0")
        await driver.command("run gpt")
        await driver.press("4")
        await driver.command("logs")
        screen = driver.app.screen
        assert isinstance(screen, LogsScreen)
        assert (screen.run_id, screen.stream) == ("gpt-0412", "rank4")
        await driver.command("stop")
        assert "stop gpt-0412" in driver.text


async def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        for text, answer in (
            ("rnus", "There is no command :rnus. Did you mean :runs?"),
            ("xyz", "`:` and tab shows what there is."),
            ("r", ":r can be runs, run, restart, remove."),
            ("run nope", "No host knows a run nope."),
            ("run", "Which run?"),
            ("logs gpt-0412 x", "x is not the number of a rank."),
            ("connect nope", "There is no host 'nope'."),
            ("theme nope", "There is no theme nope."),
            ("launch nope", "profile nope: no profile of this name"),
            ("launch ./nope.toml", "nope.toml"),
            ("stop probe-1", "probe-1 has ended already: finished."),
        ):
            if text == "run":
                await driver.press("G")
            await driver.command(text)
            await driver.is_told(answer)


async def test_an_ambiguous_run_names_its_candidates(tmp_path: Path) -> None:
    feed = cpu_demo()
    feed.run("demo-2", "gpt-0413")
    async with driving(feed, tmp_path) as driver:
        await driver.command("run gpt")
        await driver.is_told("gpt may be gpt-04")


async def test_tab_completes_commands_and_their_arguments(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("colon")
        await driver.type("res")
        assert "restart stop a run, start it again" in driver.text
        await driver.press("tab")
        await driver.type(" vi")
        await driver.pilot.pause()
        await driver.press("tab", "enter")
        assert "restart vit-large" in driver.text


async def test_completion(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        assert [line for line, _ in commands.complete(driver.app, "ru")] == ["runs", "run"]
        assert [line for line, _ in commands.complete(driver.app, "run g")] == ["run gpt-0412"]
        assert [line for line, _ in commands.complete(driver.app, "stop ")] == [
            "stop gpt-0412",
            "stop vit-large",
        ]
        assert [line for line, _ in commands.complete(driver.app, "connect h")] == ["connect hetzner-1"]
        assert commands.complete(driver.app, "add ")[0][0] == "add SSH COMMAND"
        assert commands.complete(driver.app, "nope x") == []
        assert len(commands.complete(driver.app, "")) == 8


async def test_esc_leaves_the_command_line_and_gives_the_focus_back(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        focused = driver.app.focused
        await driver.press("colon")
        await driver.type("runs")
        bar = driver.app.screen.query_one(PromptBar)
        assert bar.is_open
        assert "? keys" not in driver.text
        await driver.press("escape")
        assert not bar.is_open
        assert driver.app.focused is focused
        assert "? keys" in driver.text
        assert isinstance(driver.app.screen, FleetScreen)


@pytest.mark.parametrize("start", [None, "gpt-0412"])
async def test_what_is_typed_at_once_is_for_the_line_that_it_opens(tmp_path: Path, start: str | None) -> None:
    async with driving(small(), tmp_path, start_run=start) as driver:
        before = driver.app.screen
        opened = [":", "/"] if start is None else [":"]
        for sign in opened:
            for letter in f"{sign}rSqd:/1":  # each of them is a key of the screen
                driver.app.post_message(Key(character_to_key(letter), letter))
            await eventually(
                lambda: len(before.query_one(PromptBar).query_one(Input).value) == 7, 10, "typed"
            )
            assert before.query_one(PromptBar).query_one(Input).value == "rSqd:/1"
            assert driver.app.screen is before
            await driver.press("escape")
        if start is not None:
            for letter in "/rS:/1":
                driver.app.post_message(Key(character_to_key(letter), letter))
            await eventually(
                lambda: before.query_one(LogSearch).query_one(Input).value == "rS:/1", 10, "typed"
            )
            assert driver.app.screen is before and not before.query_one(PromptBar).is_open


async def test_a_click_elsewhere_closes_the_command_line(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("colon")
        await driver.click_text("vast-b")
        assert not driver.app.screen.query_one(PromptBar).is_open
        assert "? keys" in driver.text


# --- the runs ----------------------------------------------------------------------------------------------


async def test_all_runs_with_their_states(tmp_path: Path) -> None:
    feed = troubled()
    async with driving(feed, tmp_path, size=(160, 30)) as driver:
        await driver.press("R")
        assert isinstance(driver.app.screen, RunsScreen)
        rows = driver.app.screen.query_one(RunTable).rows
        assert rows[:2] == ["gpt-0412", "llama-ft"] or rows[:2] == ["llama-ft", "gpt-0412"]
        assert "✕ llama-ft" in driver.text
        assert "unreachable" in driver.line("llama-ft")
        assert "Connection refused" in driver.line("llama-ft")
        assert "failed 1" in driver.line("vit-large")
        assert "rank 2 ended with exit code 1." in driver.line("vit-large")
        assert "finished" in driver.line("probe-1")
        assert "running" in driver.line("gpt-0412")
        await driver.press("slash")
        await driver.type("failed")
        await driver.press("enter", "enter")
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id == "vit-large"
        await driver.press("q", "escape")
        assert "gpt-0412" in driver.text
        await driver.press("q")
        assert isinstance(driver.app.screen, FleetScreen)


async def test_no_runs_yet(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path) as driver:
        await driver.command("runs")
        assert "No host knows of a run yet." in driver.text
        assert "encamp launch PROFILE --on HOST" in driver.text


async def test_runs_that_are_acted_on_from_the_list(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.command("runs")
        run = driver.app.screen.query_one(RunTable).cursor
        for key, title in (("r", f"restart {run}"), ("S", f"stop {run}")):
            await driver.press(key)
            assert title in driver.text
            await driver.press("escape")
        await driver.press("l")
        assert isinstance(driver.app.screen, LogsScreen)
        await driver.press("q", "G", "S")
        await driver.is_told("probe-1 has ended already: finished.")
        driver.feed.store.remove_host("hetzner-1")
        commands.run(driver.app, "run probe-1")
        await driver.is_told("No host knows a run probe-1.")


# --- help, palette, leaving --------------------------------------------------------------------------------


async def test_help_lists_the_keys_that_work_here(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 60)) as driver:
        await driver.press("question_mark")
        for line in (
            "enter",
            "add a host by its ssh command",
            "k ↑",
            "ctrl-q",
            "leave; runs go on",
            ":restart [RUN]",
        ):
            assert line in driver.text
        assert "stop all ranks" not in driver.text
        assert "connect to this host now" not in driver.text
        await driver.press("question_mark")
        assert isinstance(driver.app.screen, FleetScreen)
        await driver.press("enter", "question_mark")
        assert "stop all ranks" in driver.text
        assert "0 1 2 3 4 5 6 7 8 9 " in driver.line("select rank 0 to 9")
        assert "add a host by" not in driver.text


async def test_the_help_names_each_of_two_keys_that_share_a_place_below(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 60)) as driver:
        await driver.command("logs gpt-0412")
        await driver.press("question_mark")
        assert "] " in driver.line("next rank") and "[ " not in driver.line("next rank")
        assert "[ " in driver.line("previous rank") and "] " not in driver.line("previous rank")


async def test_every_binding_that_is_offered_is_explained(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path) as driver:
        for text in ("hosts", "runs", "run gpt-0412", "logs gpt-0412"):
            await driver.command(text)
            for active in driver.app.screen.active_bindings.values():
                binding = active.binding
                if binding.id:
                    assert binding.tooltip or binding.description, binding


async def test_the_palette_finds_runs_and_commands(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("ctrl+p")
        assert isinstance(driver.app.screen, CommandPalette)
        await driver.type("run vit")
        await driver.sees("run vit-large")
        await driver.press("enter")
        await driver.pilot.pause(0.3)
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id == "vit-large"


async def test_q_goes_back_and_at_last_says_how_to_leave(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("enter", "l", "q", "q", "q")
        assert isinstance(driver.app.screen, FleetScreen)
        await driver.is_told("ctrl-q leaves encamp; all runs go on.")
        await driver.press("ctrl+q")
    assert not driver.app.is_running


async def test_the_demo_says_that_its_runs_end_and_how_another_shell_sees_them(tmp_path: Path) -> None:
    enter = ". /tmp/encamp-demo-x1/env"
    async with driving(small(), tmp_path, size=(80, 24), kind=DemoApp, enter=enter) as driver:
        await driver.is_told(enter)
        await driver.press("q")
        await driver.is_told("ctrl-q leaves encamp; the demo and its runs end.")
        await driver.press("question_mark")
        assert enter in driver.text
        await driver.press("end")
        await driver.sees("leave; the demo and its runs end")
        assert "runs go on" not in driver.text


# --- read only ---------------------------------------------------------------------------------------------


async def test_read_only_offers_nothing_that_changes_anything(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, size=(100, 50), read_only=True) as driver:
        assert "read only" in driver.line("encamp")
        for keys in (("n",), ("a",), ("enter", "r"), ("S",), ("n",)):
            await driver.press(*keys)
            assert isinstance(driver.app.screen, (FleetScreen, RunScreen))
        assert "restart" not in driver.text
        assert "S stop" not in driver.text
        await driver.press("question_mark")
        for word in ("restart", "stop all", ":launch", ":stop", ":add", ":remove"):
            assert word not in driver.text
        await driver.press("escape")
        await driver.command("restart gpt-0412")
        await driver.is_told(":restart is not offered in read-only mode.")
        await driver.press("ctrl+p")
        await driver.type("restart")
        await driver.pilot.pause(0.5)
        assert "stop a run, start it again" not in driver.text
        await driver.press("escape")
        feed.change_run(
            "vast-a", "gpt-0412", state="failed", reason="It broke.", exit_code=1, ended=feed.time
        )
        await driver.refresh()
        assert "r restart" not in driver.text
        assert all(session.asked == [] for session in driver.fleet.sessions.values())


async def test_an_empty_read_only_fleet_does_not_teach_what_it_refuses(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path, read_only=True) as driver:
        assert "Press a" not in driver.text
        assert "encamp hosts add" in driver.text
        assert "a add host" not in driver.text


# --- removing ----------------------------------------------------------------------------------------------


async def test_a_host_is_removed_by_typing_it(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.command("remove vast-a")
        assert "1 live run goes on" in driver.text
        await driver.type("remove")
        await driver.press("enter")
        await driver.is_told("vast-a was removed.")
        assert "vast-a" not in driver.fleet.store.hosts
        assert "vast-a" not in [host.name for host in driver.fleet.inventory.load()]


async def test_a_shell_is_for_those_who_may_change_things(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, read_only=True) as driver:
        await driver.press("s")
        await driver.command("shell vast-a")
        await driver.is_told(":shell is not offered in read-only mode")
        assert len(driver.notices) == 1, "the key does nothing"


async def test_a_terminal_that_cannot_be_lent_is_said(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("s")
        await driver.is_told("In another one: encamp shell")
