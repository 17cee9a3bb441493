"""The log pane on screens of several sizes: what it shows, what keys and mouse do, what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.logs import FileSource, MemorySource
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from waiting import eventually

from tui import theme
from tui.fleet.log_source import LogSource
from tui.fleet.log_window import Line
from tui.widgets.lines import Lines
from tui.widgets.log_pane import LogPane

ROOT = Path(__file__).resolve().parents[2]
SIZES = [(80, 24), (120, 40), (200, 50)]


class PaneApp(App[None]):
    CSS_PATH = str(ROOT / "tui" / "encamp.tcss")

    def __init__(self, source: LogSource | None = None) -> None:
        super().__init__()
        self.source = source

    def compose(self) -> ComposeResult:
        yield LogPane()

    def on_mount(self) -> None:
        self.register_theme(theme.DARK)
        self.theme = theme.DARK.name
        if self.source is not None:
            self.pane.show_source(self.source)
        self.pane.view.focus()

    @property
    def pane(self) -> LogPane:
        return self.query_one(LogPane)

    @property
    def title_line(self) -> str:
        return self.query_one("#log-title", Lines).text

    def screen_rows(self) -> list[str]:
        """What is drawn in the log, row by row, without the scroll bar."""
        view = self.pane.view
        return [view.render_line(y).text[:-1].rstrip() for y in range(view.size.height)]

    def text(self) -> str:
        return "\n".join(self.screen_rows())


@asynccontextmanager
async def running(
    source: LogSource | None, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[PaneApp, Pilot[None]]]:
    app = PaneApp(source)
    async with app.run_test(size=size) as pilot:
        if source is not None:
            await eventually(lambda: app.pane.feed is not None and app.pane.feed.state.value == "following")
        await pilot.pause()
        yield app, pilot


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b"12:00:01 step %06d loss 2.9\n" % number for number in range(start, start + count))


@pytest.mark.parametrize("size", SIZES)
async def test_the_end_is_shown_and_followed(size: tuple[int, int]) -> None:
    source = MemorySource(lines(1_000))
    async with running(source, size) as (app, _):
        rows = app.screen_rows()
        assert len(rows) == size[1] - 1
        assert rows[-1].split()[2] == "000999"
        assert len({len(app.pane.view.render_line(y).text) for y in range(len(rows))}) == 1
        assert "rank 0 log" in app.title_line
        assert "follow · 0 behind" in app.title_line
        assert len(app.title_line) == size[0]
        source.write(lines(3, 1_000))
        await eventually(lambda: "001002" in app.screen_rows()[-1])


async def test_scrolling_up_stops_following_and_counts_what_comes() -> None:
    source = MemorySource(lines(1_000))
    async with running(source) as (app, pilot):
        await pilot.press("pageup")
        before = app.screen_rows()
        source.write(lines(50, 1_000))
        await eventually(lambda: "72 behind" in app.title_line)
        assert [row[1:] for row in app.screen_rows()] == [row[1:] for row in before]
        await pilot.press("G")
        assert "001049" in app.screen_rows()[-1]
        await eventually(lambda: "follow" in app.title_line)


async def test_the_first_byte_is_one_key_away_and_every_line_between_can_be_reached() -> None:
    source = MemorySource(lines(40_000))
    async with running(source) as (app, pilot):
        await pilot.press("g")
        await eventually(lambda: "step 000000" in app.screen_rows()[0])
        seen = {row.split()[2] for row in app.screen_rows()}
        for _ in range(30):
            await pilot.press("pagedown")
            await eventually(lambda: "not loaded" not in app.text())
            seen.update(row.split()[2] for row in app.screen_rows())
        assert seen == {f"{number:06d}" for number in range(len(seen))}
        assert len(seen) > 650
        await pilot.press("G")
        await eventually(lambda: "039999" in app.screen_rows()[-1])
        for _ in range(10):
            await pilot.press("pageup")
            await eventually(lambda: "not loaded" not in app.text())
        assert int(app.screen_rows()[-1].split()[2]) == 39_999 - 10 * 22


async def test_holes_fill_when_they_are_looked_at() -> None:
    source = MemorySource(lines(100))
    async with running(source) as (app, pilot):
        source.skip(lines(9_000, 100))
        source.write(lines(5, 9_100))
        await eventually(lambda: "009104" in app.screen_rows()[-1])
        await eventually(lambda: "009083" in app.text())
        await pilot.press("pageup")
        await eventually(lambda: "009070" in app.text() and "not loaded" not in app.text())


@pytest.mark.parametrize("size", SIZES)
async def test_wrapping(size: tuple[int, int]) -> None:
    long = b"begin " + b"x" * 500 + b" end\n"
    source = MemorySource(lines(5) + long + lines(2, 5))
    async with running(source, size) as (app, pilot):
        width = size[0] - 2
        assert app.text().count("x" * (width - 6)) >= 1
        assert " end" in app.text()
        await pilot.press("w")
        assert " end" not in app.text()
        row = next(row for row in app.screen_rows() if "begin" in row)
        assert row.endswith("›")
        await pilot.press("right")
        assert any(row.startswith(" xxxx") for row in app.screen_rows())
        app.pane.view.action_side(80)
        assert " end" in app.text()
        await pilot.press("w")
        assert "begin" in app.text()


async def test_arrival_times_are_shown_where_they_are_known() -> None:
    source = MemorySource(lines(3))
    async with running(source) as (app, pilot):
        source.write(b"now\n")
        await eventually(lambda: "now" in app.text())
        await pilot.press("t")
        rows = app.screen_rows()
        assert rows[0].split()[0] == "–"
        assert rows[3].split()[0].count(":") == 2
        assert rows[3].split()[1] == "now"
        await pilot.press("t")
        assert app.screen_rows()[3] == " now"


async def test_search_goes_up_from_the_end_and_on_from_there() -> None:
    source = MemorySource(
        lines(20_000) + b"first Error here\n" + lines(20_000) + b"second error\n" + lines(10)
    )
    async with running(source) as (app, pilot):
        await pilot.press("slash", *"error")
        assert app.pane.view.pattern is not None
        await pilot.press("enter")
        await eventually(lambda: _cursor_text(app) == "second error")
        await pilot.press("N")
        await eventually(lambda: _cursor_text(app) == "first Error here")
        await pilot.press("N")
        await eventually(lambda: "no match above" in app.title_line)
        await pilot.press("n")
        await eventually(lambda: _cursor_text(app) == "second error")
        await pilot.press("n")
        await eventually(lambda: "no match below" in app.title_line)
        # Capitals make case count.
        await pilot.press("slash", *"Error", "enter")
        await eventually(lambda: "no match below" in app.title_line)
        await pilot.press("N")
        await eventually(lambda: _cursor_text(app) == "first Error here")
        await pilot.press("n")
        await eventually(lambda: "no match below" in app.title_line)
        await pilot.press("k")
        await eventually(lambda: "no match" not in app.title_line)
        # Escape clears the highlight, and only then is free for others.
        await pilot.press("escape")
        assert app.pane.view.pattern is None
        assert app.pane.check_action("clear", ()) is False


async def test_a_long_search_says_how_far_it_is_and_can_be_stopped() -> None:
    source = MemorySource(lines(50_000))
    source.search_limit = 100
    async with running(source, (120, 30)) as (app, pilot):
        await pilot.press("slash", *"nowhere", "enter")
        await eventually(lambda: "searching up, at" in app.title_line)
        await pilot.press("escape")
        assert "searching" not in app.title_line
        asked = len(source.searches)
        await pilot.pause(0.2)
        assert len(source.searches) <= asked + 1


async def test_typing_a_search_does_not_move_the_log() -> None:
    source = MemorySource(lines(1_000))
    async with running(source) as (app, pilot):
        await pilot.press("pageup")
        before = app.screen_rows()
        await pilot.press("slash", "s")
        assert app.screen_rows() == before
        assert not app.query_one("#log-title").display
        await pilot.press("escape")
        assert app.screen_rows() == before
        assert app.query_one("#log-title").display


def _cursor_text(app: PaneApp) -> str:
    reader = app.pane.view.reader
    assert reader is not None
    if reader.cursor is None:
        return ""
    item = reader.window.item_at(reader.cursor)
    return reader.window.shown(item).text if isinstance(item, Line) else ""


async def test_leaving_the_search_line_searches_nothing() -> None:
    source = MemorySource(lines(100))
    async with running(source) as (app, pilot):
        await pilot.press("slash", *"step", "escape")
        assert app.pane.view.has_focus
        assert app.pane.view.pattern is None
        assert app.pane.following
        assert not source.searches


async def test_search_without_the_host_finds_what_is_loaded() -> None:
    source = MemorySource(lines(50_000))
    async with running(source) as (app, pilot):
        source.cut("unreachable")
        await pilot.press("slash", *"step 049990", "enter")
        await eventually(lambda: "049990" in _cursor_text(app))
        await pilot.press("slash", *"step 000003", "enter")
        await eventually(lambda: app.pane._note)
        await pilot.press("N")
        await eventually(lambda: "cannot be searched" in app.pane._note)


async def test_copying() -> None:
    source = MemorySource(lines(100))
    async with running(source) as (app, pilot):
        await pilot.press("y")
        assert app.clipboard == "12:00:01 step 000099 loss 2.9"
        await pilot.press("up", "space", "up", "up", "y")
        assert app.clipboard.split("\n") == [
            f"12:00:01 step 0000{number} loss 2.9" for number in (96, 97, 98)
        ]
        await pilot.mouse_down(app.pane.view, offset=(10, 3))
        await pilot.hover(app.pane.view, offset=(14, 5))
        await pilot.mouse_up(app.pane.view, offset=(14, 5))
        marked = app.pane.view.reader.selection if app.pane.view.reader is not None else None
        assert marked is not None
        await pilot.press("y")
        copied = app.clipboard.split("\n")
        assert len(copied) == 3
        assert copied[0].startswith("step")
        assert copied[1].startswith("12:00:01 step")
        assert copied[2] == "12:00:01 step"


async def test_a_click_puts_the_cursor_there_but_does_not_stop_following() -> None:
    source = MemorySource(lines(100))
    async with running(source) as (app, pilot):
        await pilot.click(app.pane.view, offset=(5, 5))
        assert app.pane.following
        await pilot.press("up")
        await pilot.click(app.pane.view, offset=(5, 5))
        assert _cursor_text(app) == app.screen_rows()[5].strip(" ▌")


async def test_the_text_holds_still_under_a_pressed_button() -> None:
    source = MemorySource(lines(100))
    async with running(source) as (app, pilot):
        await pilot.mouse_down(app.pane.view, offset=(5, 5))
        before = app.screen_rows()
        source.write(lines(10, 100))
        app.pane._flush()
        assert app.screen_rows() == before
        await pilot.mouse_up(app.pane.view, offset=(5, 5))
        assert app.pane.following
        assert "000109" in app.screen_rows()[-1]


async def test_the_wheel_and_the_bar() -> None:
    source = MemorySource(lines(5_000))
    async with running(source) as (app, pilot):
        view = app.pane.view
        await pilot._post_mouse_events([_scroll_up()], view, offset=(5, 5), button=0)
        assert not app.pane.following
        assert "004996" in app.screen_rows()[-1]
        bar = "".join(view.render_line(y).text[-1] for y in range(view.size.height))
        assert bar.strip() == "▐"
        await pilot.click(view, offset=(79, 0))
        await eventually(lambda: "000000" in app.screen_rows()[0])
        await pilot.click(view, offset=(79, view.size.height - 1))
        assert app.pane.following


def _scroll_up() -> type:
    from textual import events

    return events.MouseScrollUp


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MemorySource(), "rank 0 has not printed anything yet"),
        (MemorySource(absent=True), "rank 0 has no log yet"),
        (MemorySource(ended=True), "rank 0 printed nothing"),
    ],
)
async def test_empty_logs_say_why(source: MemorySource, said: str) -> None:
    async with running(source) as (app, _):
        await eventually(lambda: said in app.text())
        source.ended = False
        if source.sinks:
            source.write(b"hello\n")
            await eventually(lambda: app.screen_rows()[0] == " hello")


async def test_an_ended_run_says_so() -> None:
    async with running(MemorySource(lines(50_000), ended=True)) as (app, _):
        await eventually(lambda: "run ended, 1.4 M" in app.title_line)
        assert "behind" not in app.title_line


async def test_an_unreachable_host_leaves_what_was_loaded() -> None:
    source = MemorySource(lines(1_000))
    async with running(source, (120, 30)) as (app, _):
        source.cut("reconnecting", since=1_000_000.0)
        await eventually(lambda: "◐ reconnecting since" in app.title_line)
        source.cut("unreachable", since=1_000_000.0)
        await eventually(lambda: "✕ unreachable since" in app.title_line)
        assert "showing what was loaded" in app.title_line
        assert "000999" in app.screen_rows()[-1]
        source.write(lines(2, 1_000))
        source.mend()
        await eventually(lambda: "001001" in app.screen_rows()[-1])
        await eventually(lambda: "follow" in app.title_line)


async def test_a_host_that_was_never_reached_says_so() -> None:
    source = MemorySource(lines(10))
    source.cut("unreachable")
    app = PaneApp(source)
    async with app.run_test(size=(80, 24)):
        await eventually(lambda: "No connection to the host (unreachable)" in app.text())
        source.mend()
        await eventually(lambda: "000009" in app.text())


async def test_another_log_can_be_shown_in_its_place() -> None:
    first, second = MemorySource(lines(10)), MemorySource(b"second\n", label="rank 1")
    async with running(first) as (app, pilot):
        app.pane.show_source(second)
        await eventually(lambda: "second" in app.text())
        assert "rank 1 log" in app.title_line
        await eventually(lambda: not first.sinks)
        app.pane.clear()
        await pilot.pause()
        assert not app.text().strip()
        assert not app.title_line


async def test_nothing_is_followed_behind_another_screen() -> None:
    from textual.screen import ModalScreen, Screen

    source = MemorySource(lines(10))
    async with running(source) as (app, pilot):
        await app.push_screen(ModalScreen())
        await pilot.pause(0.3)
        assert source.sinks
        app.pop_screen()
        await app.push_screen(Screen())
        await eventually(lambda: not source.sinks)
        source.write(lines(3, 10))
        app.pop_screen()
        await eventually(lambda: "000012" in app.text())
        assert source.sinks


async def test_prefixes_stand_before_the_first_row_of_a_line() -> None:
    source = MemorySource(b"short\n" + b"y" * 100 + b"\n")
    async with running(None) as (app, _):
        app.pane.show_source(
            source, prefix=lambda offset: ("rank 3" if offset else "rank 1", 3), prefix_width=7
        )
        await eventually(lambda: "short" in app.text())
        rows = app.screen_rows()
        assert rows[0] == " rank 1 short"
        assert rows[1].startswith(" rank 3 yyy")
        assert rows[2].startswith("        yyy")


async def test_a_real_file(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(lines(30_000))
    async with running(FileSource(path)) as (app, pilot):
        assert "029999" in app.screen_rows()[-1]
        with path.open("ab") as file:
            file.write(b"written later\n")
        await eventually(lambda: "written later" in app.screen_rows()[-1])
        await pilot.press("g")
        await eventually(lambda: "000000" in app.screen_rows()[0])
        await pilot.press("slash", *"step 015000", "enter")
        await eventually(lambda: "015000" in _cursor_text(app))


@pytest.mark.parametrize(
    "name", ["encamp-dark", "encamp-light", "ansi-dark", "ansi-light", "textual-light", "dracula"]
)
async def test_every_theme_draws_it(name: str) -> None:
    source = MemorySource(b"\x1b[31mred\x1b[0m plain\n" + lines(30))
    async with running(source) as (app, pilot):
        app.register_theme(theme.LIGHT)
        app.theme = name
        await pilot.press("pageup", "slash", *"red", "enter", "space")
        await pilot.pause()
        assert "red plain" in app.text()
        assert app.export_screenshot()
