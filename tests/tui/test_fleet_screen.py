"""The fleet on the screen: rows, states, keys and sizes."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path

from driving import driving
from feed import FakeHost, Feed, cpu_demo, large, sample, small, troubled

from agent import wire
from tui.fleet.store import Link
from tui.screens.add_host import AddHostScreen
from tui.screens.host_key import HostProblemScreen
from tui.screens.launch import LaunchScreen
from tui.screens.run import RunScreen
from tui.widgets.host_table import HostTable, Row


async def test_a_line_a_host(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(160, 30)) as driver:
        line = driver.line("vast-a")
        assert line.split()[:6] == ["▌●", "vast-a", "live", "8", "RTX", "4090"]
        assert "175/192 G" in line
        assert "gpt-0412" in line
        assert line.endswith(" s")
        assert "idle 3 h" in driver.line("hetzner-1")
        assert "no GPUs" in driver.line("login")
        assert "4 hosts · 16 GPUs · 2 runs" in driver.line("encamp")


async def test_columns_follow_a_live_resize_and_nothing_overflows(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(120, 30)) as driver:
        for width, height in ((80, 24), (200, 50), (40, 10), (100, 30)):
            await driver.pilot.resize_terminal(width, height)
            await driver.pilot.pause()
            lines = driver.text.splitlines()
            assert len(lines) == height
            assert all(len(line) <= width for line in lines)
            head = driver.line("HOST")
            assert "STATE" in head
            assert "AGE" in head
            assert ("MEMORY" in head) == (width >= 100)
            assert ("POWER" in head) == ("LAST MINUTE" in head) == (width >= 200)


async def test_the_first_frame_is_whole(tmp_path: Path) -> None:
    """Before the first tick there is no width; a frame drawn then must not be a broken one."""
    async with driving(troubled(), tmp_path) as driver:
        assert driver.line("runpod-2").split()[1:3] == ["runpod-2", "unreachable"]


async def test_an_empty_fleet_teaches(tmp_path: Path) -> None:
    async with driving(Feed(), tmp_path, size=(80, 24)) as driver:
        assert "Three ways" in driver.text
        for example in (
            "ssh -p 20544 root@203.0.113.7",
            ":add my-gpu-box",
            "encamp hosts add",
            "encamp demo",
        ):
            assert example in driver.text
        assert "HOST" not in driver.text
        await driver.press("a")
        assert isinstance(driver.app.screen, AddHostScreen)


async def test_a_fleet_of_one(tmp_path: Path) -> None:
    feed = Feed()
    feed.add(FakeHost("solo", gpus=1))
    feed.advance(2)
    async with driving(feed, tmp_path, size=(80, 24)) as driver:
        assert "1 host · 1 GPU" in driver.line("encamp")
        assert "1 RTX 4090" in driver.line("solo")


async def test_a_fleet_without_gpus_has_no_columns_for_them(tmp_path: Path) -> None:
    async with driving(cpu_demo(), tmp_path, size=(80, 24)) as driver:
        head = driver.line("HOST")
        assert "UTIL" not in head
        assert "RAM" in head
        assert "█" in driver.line("demo-1")
        assert "no GPUs" in driver.line("demo-1")


# --- trouble -----------------------------------------------------------------------------------------------


async def test_trouble_rises_and_all_else_keeps_its_place(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        assert [row.host for row in table.rows] == ["vast-a", "vast-b", "hetzner-1", "login"]
        feed.store.set_link("login", Link.UNREACHABLE, "No route.")
        feed.store.set_link("hetzner-1", Link.RECONNECTING, "Lost.")
        await driver.refresh()
        assert [row.host for row in table.rows] == ["login", "hetzner-1", "vast-a", "vast-b"]
        assert table.cursor == Row("vast-a")
        feed.store.set_link("login", Link.LIVE)
        feed.store.set_link("hetzner-1", Link.LIVE)
        await driver.refresh()
        assert [row.host for row in table.rows] == ["vast-a", "vast-b", "hetzner-1", "login"]


STATES = {
    "runpod-2": ["✕", "unreachable", "since", "last seen 4 min ago", "retry in", "c connect now"],
    "lambda-1": ["◐", "reconnecting", "The connection was lost.", "retry in", "c connect now"],
    "runpod-9": ["✕", "key changed", "another host key", "K details"],
    "old-box": ["✕", "refused", "No Python", "c try again"],
    "vast-c": ["✕", "auth failed", "did not accept", "c try again"],
    "vast-d": ["◌", "installing"],
    "vast-e": ["◌", "connecting"],
    "vast-f": ["○", "not connected", "c connect now"],
    "vast-g": ["◌", "new host key", "waiting for your answer"],
    "hetzner-1": ["◐", "3 bad messages"],
    "vast-b": ["✕", "run failed", "vit-large"],
}


async def test_every_state_is_on_its_row_with_its_next_step(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path, size=(140, 30)) as driver:
        for host, words in STATES.items():
            line = driver.line(host)
            assert [word for word in words if word not in line] == [], line


async def test_the_next_step_survives_a_narrow_screen(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path, size=(80, 24)) as driver:
        assert driver.line("runpod-2").endswith("c connect now")
        assert driver.line("runpod-9").endswith("K details")


async def test_connect_now_asks_the_session(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        table.select(Row("runpod-2"))
        await driver.press("c")
        assert driver.fleet.sessions["runpod-2"].retries == 1
        table.select(Row("vast-a"))
        await driver.press("c")
        assert driver.fleet.sessions["vast-a"].retries == 0


async def test_details_of_a_changed_key_show_both_fingerprints_and_the_way_out(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path, size=(80, 24)) as driver:
        driver.app.screen.query_one(HostTable).select(Row("runpod-9"))
        await driver.press("K")
        assert isinstance(driver.app.screen, HostProblemScreen)
        for word in ("SHA256:47DEQpj8HBSa", "SHA256:uNiVztksCsD", "encamp hosts forget-key runpod-9"):
            assert word in driver.text
        await driver.press("c")
        assert driver.fleet.sessions["runpod-9"].retries == 1


async def test_values_that_are_too_old_are_dimmed_with_their_age(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        fresh = {tone for text, tone in table.pieces(Row("vast-a")) if "175/192" in text}
        feed.store.hosts["vast-a"].received -= 7
        await driver.refresh()
        assert re.search(r" ([89]|[1-9]\d) s$", driver.line("vast-a").rstrip()), (
            "as old as it was made, or older"
        )
        assert fresh == {""}
        assert {tone for text, tone in table.pieces(Row("vast-a")) if "175/192" in text} == {"quiet"}


async def test_what_a_host_says_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    feed = small()
    evil = "\x1b]0;owned\x07\x1b[2J\x9bX[bold red]H100\u202e"
    taken = sample(feed.hosts["vast-b"], 1, feed.time)
    gpus = tuple(dataclasses.replace(gpu, name=evil) for gpu in taken.gpu.gpus)
    feed.store.apply("vast-b", dataclasses.replace(taken, gpu=dataclasses.replace(taken.gpu, gpus=gpus)))
    feed.store.set_link("login", Link.UNREACHABLE, evil, evil)
    async with driving(feed, tmp_path, size=(200, 50)) as driver:
        driver.app.screen.query_one(HostTable).expanded |= {"vast-b", "login"}
        await driver.refresh()
        assert all(line.isprintable() for line in driver.text.splitlines())
        assert "owned" not in driver.text
        assert "[bold red]H100" in driver.text


# --- opening up --------------------------------------------------------------------------------------------


async def test_a_host_opens_up_to_its_gpus(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(100, 30)) as driver:
        await driver.press("space")
        line = driver.line("rank 3")
        for word in ("3 ", " %", "█", "21.8/24 G", "/450 W", "°", "rank 3 of gpt-0412", "⣿"):
            assert word in line
        assert "driver 550.54.15" in driver.text
        assert "32 cores" in driver.text
        await driver.press("left")
        assert "rank 3" not in driver.text
        await driver.press("right")
        assert "rank 3" in driver.text


async def test_closing_from_within_goes_back_to_the_host(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("space", "j", "j")
        table = driver.app.screen.query_one(HostTable)
        assert table.cursor == Row("vast-a", "gpu", 1)
        await driver.press("space")
        assert table.cursor == Row("vast-a")


async def test_enter_opens_the_run_at_the_rank_of_a_gpu(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("space", "j", "j", "j", "enter")
        screen = driver.app.screen
        assert isinstance(screen, RunScreen)
        assert (screen.run_id, screen.rank) == ("gpt-0412", 2)


async def test_enter_on_a_host_without_a_run_opens_it_up(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("G", "enter")
        assert "16 cores" in driver.text
        assert driver.app.screen.query_one(HostTable).expanded == {"login"}


async def test_a_host_in_trouble_says_all_of_it_when_opened_up(tmp_path: Path) -> None:
    async with driving(troubled(), tmp_path, size=(140, 40)) as driver:
        table = driver.app.screen.query_one(HostTable)
        for host in ("runpod-2", "vast-b", "hetzner-1"):
            table.select(Row(host))
            await driver.press("space")
        for sentence in (
            "Connection refused by 203.0.113.11 port 20548.",
            "Check that the instance still runs.",
            "vit-large failed: rank 2 ended with exit code 1.",
            "3 messages of its agent could not be read and were dropped.",
        ):
            assert sentence in driver.text


async def test_a_lost_gpu_is_marked_on_its_row(tmp_path: Path) -> None:
    feed = small()
    taken = sample(feed.hosts["vast-a"], 1, feed.time)
    gpus = list(taken.gpu.gpus)
    gpus[3] = wire.GpuSample(index=3, uuid="x", name="NVIDIA GeForce RTX 4090", state="reset-required")
    feed.store.apply(
        "vast-a", dataclasses.replace(taken, gpu=dataclasses.replace(taken.gpu, gpus=tuple(gpus)))
    )
    async with driving(feed, tmp_path) as driver:
        assert "GPU 3 reset" in driver.line("vast-a")
        await driver.press("space")
        assert "▲ reset required" in driver.text


# --- moving, filtering, sorting ----------------------------------------------------------------------------


async def test_moving_with_every_key(tmp_path: Path) -> None:
    async with driving(large(60, gpus=2), tmp_path, size=(100, 24)) as driver:
        table = driver.app.screen.query_one(HostTable)

        async def lands(host: int, *keys: str) -> None:
            await driver.press(*keys)
            assert table.cursor == Row(f"node-{host:03d}")
            assert f"node-{host:03d}" in driver.text

        await lands(1, "j")
        await lands(2, "down")
        await lands(1, "k")
        await lands(0, "up", "up")
        await lands(59, "G")
        await lands(0, "g")
        await lands(19, "ctrl+f")
        await lands(38, "pagedown")
        await lands(19, "ctrl+b")
        await lands(0, "pageup")
        await lands(59, "end")
        await lands(0, "home")


async def test_the_wheel_scrolls_without_moving_the_cursor(tmp_path: Path) -> None:
    async with driving(large(60, gpus=2), tmp_path, size=(100, 24)) as driver:
        table = driver.app.screen.query_one(HostTable)
        await driver.pilot._post_mouse_events([_wheel_down()], widget=table)  # type: ignore[list-item]
        await driver.pilot.pause(0.3)
        assert table.scroll_offset.y > 0
        assert table.cursor == Row("node-000")


def _wheel_down() -> type:
    from textual.events import MouseScrollDown

    return MouseScrollDown


async def test_a_click_selects_and_a_second_one_opens(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        await driver.click_text("vast-b")
        assert table.cursor == Row("vast-b")
        await driver.click_text("vast-b", times=2)
        assert isinstance(driver.app.screen, RunScreen)


async def test_a_click_on_the_footer_presses_the_key(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.click_text("add host")
        assert isinstance(driver.app.screen, AddHostScreen)


async def test_a_filter_narrows_while_it_is_typed_and_stays(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("slash")
        await driver.type("vas")
        assert "hetzner-1" not in driver.text
        assert "vast-b" in driver.text
        await driver.press("enter")
        assert "fleet › /vas" in driver.line("encamp")
        await driver.press("j")
        assert driver.app.screen.query_one(HostTable).cursor == Row("vast-b")
        await driver.press("escape")
        assert "hetzner-1" in driver.text


async def test_what_a_filter_finds(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        for text, shown in {
            "h100": {"vast-b"},
            "!vast": {"hetzner-1", "login"},
            "vit": {"vast-b"},
            "no gpus": {"login"},
            "idle": {"hetzner-1", "login"},
            "203.0.113.7": {"vast-a"},
            "!": {"vast-a", "vast-b", "hetzner-1", "login"},
        }.items():
            table.filter = text
            table.tick()
            assert {row.host for row in table.rows} == shown, text


async def test_a_filter_that_finds_nothing_says_how_to_leave_it(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("slash")
        await driver.type("zzz")
        assert "No host matches /zzz. esc shows all of them." in driver.text
        await driver.press("escape")
        assert "vast-a" in driver.text


async def test_sorting_is_the_users_act_and_then_rows_keep_their_places(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        await driver.press("o")
        assert [row.host for row in table.rows] == ["hetzner-1", "login", "vast-a", "vast-b"]
        await driver.press("o")
        by_use = [row.host for row in table.rows]
        assert set(by_use[:2]) == {"vast-a", "vast-b"}
        feed.hosts[by_use[0]].busy = False
        feed.advance(2)
        await driver.refresh()
        assert [row.host for row in table.rows] == by_use
        await driver.click_text("HOST")
        assert [row.host for row in table.rows] == ["hetzner-1", "login", "vast-a", "vast-b"]


async def test_a_host_that_comes_back_under_its_name_is_another_one(tmp_path: Path) -> None:
    feed = small(seconds=1)
    async with driving(feed, tmp_path) as driver:
        revision = feed.store.hosts["vast-a"].revision
        feed.store.remove_host("vast-a")
        view = feed.store.add_host("vast-a", "root@203.0.113.200:1")
        view.revision = revision
        await driver.refresh()
        assert "not connected" in driver.line("vast-a")


async def test_a_host_that_goes_while_the_cursor_is_on_it(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path) as driver:
        await driver.press("j")
        feed.store.remove_host("vast-b")
        await driver.refresh()
        assert driver.app.screen.query_one(HostTable).cursor == Row("hetzner-1")
        assert "vast-b" not in driver.text
        for name in list(feed.store.hosts):
            feed.store.remove_host(name)
        await driver.refresh()
        assert "There is no host yet" in driver.text


# --- drawing only what changed -----------------------------------------------------------------------------


async def test_only_rows_that_changed_are_drawn_again(tmp_path: Path) -> None:
    feed = large(60, gpus=2)
    async with driving(feed, tmp_path, size=(120, 30)) as driver:
        table = driver.app.screen.query_one(HostTable)
        driver.app.screen.refresh_now = lambda: None  # type: ignore[attr-defined]  # only our own ticks
        now = time.monotonic()
        table.tick(now)
        await driver.pilot.pause()
        drawn: list[Row] = []
        original = table.pieces
        table.pieces = lambda key: (drawn.append(key), original(key))[1]  # type: ignore[method-assign]
        feed.feed_host(feed.hosts["node-004"])
        feed.feed_host(feed.hosts["node-055"])
        table.tick(now)
        await driver.pilot.pause()
        assert drawn == [Row("node-004")]


async def test_the_hosts_below_the_screen_cost_nothing_to_draw(tmp_path: Path) -> None:
    async with driving(large(200, gpus=1), tmp_path, size=(120, 30)) as driver:
        table = driver.app.screen.query_one(HostTable)
        assert len(table.rows) == 200
        assert len(table._drawn) <= 28


async def test_the_footer_has_room_for_the_way_to_all_keys(tmp_path: Path) -> None:
    for width in (40, 80, 200):
        async with driving(troubled(), tmp_path / str(width), size=(width, 24)) as driver:
            assert driver.text.splitlines()[-1].endswith("? keys")


async def test_launch_asks_for_the_host_under_the_cursor(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        await driver.press("j", "n")
        assert isinstance(driver.app.screen, LaunchScreen)
        assert driver.app.screen.host == "vast-b"
