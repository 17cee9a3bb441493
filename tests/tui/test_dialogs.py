"""Questions over the screen: hosts to add, keys to accept, secrets, runs to launch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from driving import Driver, driving
from fake_fleet import FakeFleet
from feed import FakeHost, Feed, small
from textual.widgets import Button, Input, Select
from waiting import eventually

from tui.app import EncampApp
from tui.fleet.errors import RequestRefused
from tui.fleet.hosts import Host
from tui.fleet.store import Link
from tui.screens.add_host import AddHostScreen
from tui.screens.host_key import HostKeyScreen
from tui.screens.launch import LaunchScreen
from tui.screens.run import RunScreen
from tui.screens.secret import SecretScreen

HOST = Host("vast-a", "203.0.113.7", 20544, "root")
PROFILE = """
description = "a plain script"
[run]
script = "/root/train.py"
nproc_per_node = 2
args = ["--lr", "3e-4"]
"""


# --- adding a host -----------------------------------------------------------------------------------------


async def test_a_pasted_command_is_understood_while_it_is_typed(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path, size=(100, 30)) as driver:
        await driver.press("a")
        field = driver.app.screen.query_one("#command", Input)
        field.value = "ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080"
        await driver.pilot.pause()
        assert "ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080 " in driver.text
        line = driver.line("● host")
        assert "host 203.0.113.7" in line
        assert "user root" in line
        assert "port 20544" in line
        assert "not needed, left out: -L 8080:localhost:8080" in driver.text
        assert driver.app.screen.query_one("#name", Input).placeholder == "203.0.113.7-20544"
        field.value = "ssh -w 3 root@203.0.113.7"
        await driver.pilot.pause()
        assert "-w" in driver.line("? ")
        assert "●" not in driver.text


async def test_a_host_is_added_and_written_down(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path) as driver:
        await driver.press("a")
        await driver.type("root@203.0.113.7:20544")
        await driver.press("tab")
        await driver.type("vast-a")
        await driver.press("enter")
        await driver.is_told("vast-a was added.")
        await driver.refresh()
        assert "◌ vast-a" in driver.text
        assert [host.name for host in driver.fleet.inventory.load()] == ["vast-a"]
        assert driver.fleet.inventory.load()[0].port == 20544


async def test_a_name_that_is_taken_is_refused_in_the_dialog(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.command("add root@203.0.113.99:1")
        assert isinstance(driver.app.screen, AddHostScreen)
        await driver.press("tab")
        await driver.type("vast-a")
        await driver.press("enter")
        assert "There is a host called vast-a already." in driver.text
        await driver.press("escape")
        assert "vast-a" in driver.fleet.sessions


async def test_nonsense_is_refused_with_an_example(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path) as driver:
        await driver.press("a", "enter")
        assert "✕" in driver.text
        assert "ssh -p 20544" in driver.text
        assert isinstance(driver.app.screen, AddHostScreen)


# --- questions of connections ------------------------------------------------------------------------------


async def asked(driver: Driver, screen: type) -> None:
    """Wait until a dialog of this kind is up."""
    await eventually(
        lambda: isinstance(driver.app.screen, screen) and driver.app.screen.is_mounted, 10, screen.__name__
    )
    await driver.pilot.pause()


@pytest.mark.parametrize(("typed", "answer"), [("yes", True), ("y", True), ("no", False)])
async def test_a_new_key_is_accepted_by_typing_it(tmp_path: Path, typed: str, answer: bool) -> None:
    async with driving(small(), tmp_path) as driver:
        question = asyncio.create_task(
            driver.fleet.prompts.accept_host_key(
                HOST, "ssh-ed25519", "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDxKUsWZRzbcpOhWZk"
            )
        )
        await asked(driver, HostKeyScreen)
        for word in (
            "vast-a",
            "root@203.0.113.7:20544",
            "ssh-ed25519",
            "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDxKUsWZRzbcpOhWZk",
        ):
            assert word in driver.text
        await driver.press("enter")
        assert "Please type yes or no." in driver.text
        assert not question.done()
        await driver.type(typed)
        await driver.press("enter")
        assert await question is answer


async def test_the_buttons_of_the_key_dialog(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        for button, answer in (("accept", True), ("refuse", False)):
            question = asyncio.create_task(driver.fleet.prompts.accept_host_key(HOST, "rsa", "SHA256:x"))
            await asked(driver, HostKeyScreen)
            await driver.pilot.click(f"#{button}")
            assert await question is answer


async def test_leaving_the_key_dialog_refuses(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        question = asyncio.create_task(driver.fleet.prompts.accept_host_key(HOST, "rsa", "SHA256:x"))
        await asked(driver, HostKeyScreen)
        await driver.press("escape")
        assert await question is False


async def test_several_questions_wait_their_turn(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        prompts = driver.fleet.prompts
        questions = [
            asyncio.create_task(prompts.accept_host_key(Host(f"host-{number}", "h"), "rsa", "SHA256:x"))
            for number in range(3)
        ]
        for number in range(3):
            await asked(driver, HostKeyScreen)
            await driver.sees(f"new host key of host-{number}")
            await driver.type("y")
            await driver.press("enter")
            assert await questions[number] is True
        assert not isinstance(driver.app.screen, HostKeyScreen)


async def test_a_question_whose_asker_is_gone_is_taken_back(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        prompts = driver.fleet.prompts
        first = asyncio.create_task(prompts.accept_host_key(Host("one", "h"), "rsa", "SHA256:x"))
        await asked(driver, HostKeyScreen)
        second = asyncio.create_task(prompts.password(Host("two", "h"), "Password:"))
        first.cancel()
        await asked(driver, SecretScreen)
        second.cancel()
        await eventually(lambda: not isinstance(driver.app.screen, SecretScreen), 10)


async def test_a_password_is_not_shown(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        question = asyncio.create_task(driver.fleet.prompts.password(HOST, "root's pass\x1b[2Jword\x07:"))
        await asked(driver, SecretScreen)
        assert "password for root@203.0.113.7:20544" in driver.text
        assert "root's password:" in driver.text
        await driver.type("s3cret")
        assert "s3cret" not in driver.text
        assert "••••••" in driver.text
        await driver.press("enter")
        assert await question == "s3cret"


async def test_a_passphrase_can_be_left_out(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        question = asyncio.create_task(driver.fleet.prompts.passphrase(HOST, "~/.ssh/id_ed25519"))
        await asked(driver, SecretScreen)
        assert "passphrase of ~/.ssh/id_ed25519" in driver.text
        await driver.press("escape")
        assert await question is None


async def test_a_question_from_before_the_app_was_there_is_asked(tmp_path: Path) -> None:
    fleet = FakeFleet(small(), tmp_path)
    app = EncampApp(fleet)  # type: ignore[arg-type]
    question = asyncio.create_task(fleet.prompts.accept_host_key(HOST, "rsa", "SHA256:x"))
    await asyncio.sleep(0)
    async with app.run_test() as pilot:
        driver = Driver(app, pilot, fleet, fleet.feed)
        await asked(driver, HostKeyScreen)
        await driver.type("y")
        await driver.press("enter")
        assert await question is True


async def test_leaving_the_app_answers_all_questions(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        prompts = driver.fleet.prompts
        questions = [asyncio.create_task(prompts.password(Host(name, "h"), "")) for name in ("a", "b")]
        await asked(driver, SecretScreen)
    assert await asyncio.gather(*questions) == [None, None]
    assert await prompts.password(HOST, "late") is None


# --- launching ---------------------------------------------------------------------------------------------


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ENCAMP_CONFIG_DIR", str(tmp_path / "config"))
    (folder / "aa-script.toml").write_text(PROFILE)
    return folder


async def test_the_exact_command_is_shown_before_anything_starts(tmp_path: Path, profiles: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("vast-a would start 2 ranks:")
        assert "a plain script" in driver.text
        assert "cd /root && env OMP_NUM_THREADS=1 /opt/conda/bin/python -m" in driver.text
        assert "/root/train.py --lr 3e-4" in driver.text
        session = driver.fleet.sessions["vast-a"]
        assert [params["dry_run"] for method, params in session.asked if method == "launch"] == [True]
        assert "gpt-0412" in driver.feed.hosts["vast-a"].runs
        assert len(driver.feed.hosts["vast-a"].runs) == 1


async def test_a_launch_opens_the_run(tmp_path: Path, profiles: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("would start 2 ranks")
        await driver.pilot.click("#launch")
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 10)
        assert isinstance(driver.app.screen, RunScreen)
        assert driver.app.screen.run_id.startswith("aa-script-")
        await driver.sees("◌ starting")


async def test_a_launch_by_the_keyboard_alone(tmp_path: Path, profiles: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("would start 2 ranks")
        await driver.press("tab", "tab", "tab")
        await driver.type("4")
        await driver.sees("would start 4 ranks")
        await driver.press("enter", "enter")
        await eventually(lambda: isinstance(driver.app.screen, RunScreen), 10)
        spec = next(
            params["spec"]
            for method, params in driver.fleet.sessions["vast-a"].asked
            if not params.get("dry_run", True)
        )
        assert spec["nproc_per_node"] == 4


async def test_mistakes_are_said_in_the_dialog(tmp_path: Path, profiles: Path) -> None:
    (profiles / "ab-broken.toml").write_text("[run]\nscript = 3\n")
    feed = small()
    async with driving(feed, tmp_path, size=(100, 40)) as driver:
        await driver.press("n")
        await driver.sees("would start")
        screen = driver.app.screen
        button = screen.query_one("#launch", Button)
        screen.query_one("#set", Input).value = "run.colour=red"
        await driver.sees("✕ --set run.colour=red: run.colour")
        assert button.disabled
        screen.query_one("#set", Input).value = 'env.A="open'
        await driver.sees("A quote in `change` is not closed.")
        screen.query_one("#set", Input).value = ""
        await driver.sees("would start")
        screen.query_one("#profile", Select).value = "ab-broken"
        await driver.sees("ab-broken.toml: run.script = 3:")
        screen.query_one("#profile", Select).value = "aa-script"
        feed.store.set_link("vast-a", Link.UNREACHABLE, "No route.")
        screen.query_one("#nproc", Input).value = "2"
        await driver.sees("vast-a is unreachable.")
        assert button.disabled


async def test_what_the_host_refuses_is_said_in_the_dialog(tmp_path: Path, profiles: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 40)) as driver:
        session = driver.fleet.sessions["vast-a"]
        session.refuse["launch"] = RequestRefused(
            "no-script", "There is no /root/train.py.", "Copy it there."
        )
        await driver.press("n")
        await driver.sees("There is no /root/train.py. Copy it there.")
        assert driver.app.screen.query_one("#launch", Button).disabled
        assert isinstance(driver.app.screen, LaunchScreen)


async def test_an_answer_to_an_older_question_changes_nothing(tmp_path: Path, profiles: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 40)) as driver:
        session = driver.fleet.sessions["vast-a"]
        session.held = asyncio.Event()
        await driver.press("n")
        await driver.sees("asking vast-a")
        driver.app.screen.query_one("#nproc", Input).value = "7"
        await driver.pilot.pause()
        session.held.set()
        await driver.sees("would start 7 ranks")


async def test_launching_without_a_host(tmp_path: Path, profiles: Path) -> None:
    async with driving(Feed(), tmp_path) as driver:
        await driver.press("n")
        assert not isinstance(driver.app.screen, LaunchScreen)
        await driver.command("launch")
        await driver.sees("There is no host.")


async def test_a_dialog_fits_a_small_terminal(tmp_path: Path, profiles: Path) -> None:
    feed = Feed()
    feed.add(FakeHost("a"))
    feed.advance(1)
    async with driving(feed, tmp_path, size=(80, 24)) as driver:
        await driver.press("n")
        await driver.sees("would start 2 ranks")
        assert "launch      " in driver.text
        assert "esc leave" in driver.text
