"""The logs screen: every stream of a run, the merged view, attempts, and a host that goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_fleet import FakeFleet, FakeSession
from fakes.logs import MemorySource
from feed import Feed, small
from textual.pilot import Pilot
from waiting import eventually

from tui.app import EncampApp
from tui.fleet.log_source import LogSink
from tui.fleet.store import Link
from tui.run_facts import LAUNCHER
from tui.screens.logs import MERGED, LogsScreen
from tui.widgets.lines import Header, Lines
from tui.widgets.log_view import LogView
from tui.widgets.stream_tabs import StreamTabs

RUN = "gpt-0412"


class Streams:
    """The streams of all attempts of a run, as one host has them."""

    def __init__(self) -> None:
        self.sources: dict[tuple[int, str], MemorySource] = {}

    def __getitem__(self, key: tuple[int, str]) -> MemorySource:
        attempt, stream = key
        if key not in self.sources:
            text = "".join(f"{stream} of attempt {attempt} line {number}\n" for number in range(200))
            self.sources[key] = MemorySource(text.encode())
        return self.sources[key]


class StreamSession(FakeSession):
    """A session whose logs are those of `Streams`."""

    streams: Streams

    async def read_log(
        self, run: str, attempt: int, stream: str, offset: int, length: int
    ) -> tuple[int, bytes, int, bool]:
        part = await self.streams[attempt, stream].read(offset, length)
        return part.offset, part.data, part.size, part.ended

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: LogSink) -> None:
        await self.streams[attempt, stream].follow(offset, sink)

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: LogSink) -> None:
        await self.streams[attempt, stream].unfollow(sink)

    async def request(self, method: str, params: Mapping[str, Any], timeout: float = 30.0) -> dict[str, Any]:
        if method != "log_search":
            return await super().request(method, params, timeout)
        step = await self.streams[params["attempt"], params["stream"]].search(
            params["text"], params["offset"], backward=params["backward"], ignore_case=params["ignore_case"]
        )
        return {"offset": step.offset, "line_offset": None, "scanned_to": step.scanned_to, "more": step.more}


class Driven:
    """The app on the logs of a run, and what it shows."""

    def __init__(self, app: EncampApp, pilot: Pilot[None], feed: Feed, streams: Streams) -> None:
        self.app, self.pilot, self.feed, self.streams = app, pilot, feed, streams

    @property
    def screen(self) -> LogsScreen:
        screen = self.app.screen
        assert isinstance(screen, LogsScreen)
        return screen

    @property
    def view(self) -> LogView:
        return self.screen.query_one(LogView)

    @property
    def rows(self) -> list[str]:
        return [self.view.render_line(y).text[:-1].rstrip() for y in range(self.view.size.height)]

    @property
    def header(self) -> str:
        return self.screen.query_one(Header).text

    @property
    def tabs(self) -> str:
        return self.screen.query_one(StreamTabs).text

    @property
    def title(self) -> str:
        return self.screen.query_one("#log-title", Lines).text

    async def shows(self, text: str) -> None:
        await eventually(lambda: any(text in row for row in self.rows), 10, text)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        self.screen.refresh_now()


@asynccontextmanager
async def driven(
    tmp_path: Path, *, rank: int = 0, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[Driven]:
    feed, streams = small(seconds=3), Streams()
    fleet = FakeFleet(feed, tmp_path)
    for name, session in list(fleet.sessions.items()):
        fleet.sessions[name] = StreamSession(fleet, session.host)
        fleet.sessions[name].streams = streams  # type: ignore[attr-defined]
    app = EncampApp(fleet)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        app.open_logs(RUN, rank)
        await eventually(lambda: isinstance(app.screen, LogsScreen) and app.screen.is_mounted)
        await pilot.pause()
        yield Driven(app, pilot, feed, streams)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
async def test_opens_on_the_rank_that_was_asked_for(tmp_path: Path, size: tuple[int, int]) -> None:
    async with driven(tmp_path, rank=3, size=size) as it:
        await it.shows("rank3 of attempt 1 line 199")
        assert "fleet › gpt-0412 › logs" in it.header
        assert "attempt 1" in it.header
        assert "running" in it.header
        assert "[● rank 3]" in it.tabs
        assert "rank 3 log" in it.title
        assert it.app.focused is it.view


async def test_ranks_are_switched_by_number_and_by_brackets(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.shows("rank0 of attempt 1")
        await it.press("5")
        await it.shows("rank5 of attempt 1 line 199")
        await it.press("right_square_bracket")
        await it.shows("rank6 of attempt 1 line 199")
        await it.press("left_square_bracket", "left_square_bracket")
        await it.shows("rank4 of attempt 1 line 199")
        await it.press("9")  # there is no rank 9
        await it.shows("rank4 of attempt 1 line 199")
        await it.press("L")
        await it.shows("launcher of attempt 1 line 199")
        assert it.screen.rank == LAUNCHER
        await it.press("left_square_bracket")
        assert it.screen.stream == MERGED
        await eventually(lambda: sum(bool(source.sinks) for source in it.streams.sources.values()) == 9)
        await it.press("0")
        await it.shows("rank0 of attempt 1 line 199")
        await eventually(lambda: sum(bool(source.sinks) for source in it.streams.sources.values()) == 1)


async def test_a_tab_is_clicked(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.pilot.click(StreamTabs, offset=(it.tabs.index("rank 2") + 1, 0))
        await it.shows("rank2 of attempt 1 line 199")


async def test_the_tabs_around_the_current_one_are_shown(tmp_path: Path) -> None:
    async with driven(tmp_path, rank=7, size=(60, 20)) as it:
        assert "[● rank 7]" in it.tabs
        assert "launcher" not in it.tabs
        assert it.tabs.startswith("‹")
        await it.press("0")
        await eventually(lambda: "[● rank 0]" in it.tabs and it.tabs.rstrip().endswith("›"))


async def test_merged_lines_have_their_rank_before_them(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.press("m")
        await eventually(lambda: any("rank 7 rank7 of attempt 1 line 199" in row for row in it.rows))
        for row in it.rows:
            word, number, name = row.split()[:3]
            assert name == (word if word == "launcher" else f"rank{number}") or word == "launcher"
        it.streams[1, "rank2"].write(b"came first\n")
        it.streams[1, "rank1"].write(b"came second\n")
        await eventually(lambda: "rank 1 came second" in it.rows[-1])
        assert it.rows[-2].split(maxsplit=2) == ["rank", "2", "came first"]
        await it.press("g")
        await eventually(lambda: any("rank3 of attempt 1 line 0" in row for row in it.rows))
        await it.press("slash", *"came", "enter")
        await eventually(lambda: any(row.startswith("▌") and "came first" in row for row in it.rows))
        await it.press("m")
        await it.shows("rank0 of attempt 1 line 199")


async def test_a_follower_goes_on_to_the_next_attempt_and_can_look_back(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.shows("rank0 of attempt 1")
        it.feed.change_run("vast-a", RUN, attempt=2)
        await it.shows("rank0 of attempt 2 line 199")
        assert "attempt 2" in it.header
        await it.press("less_than_sign")
        await it.shows("rank0 of attempt 1 line 199")
        assert "attempt 1 of 2" in it.header
        await it.press("greater_than_sign")
        await it.shows("rank0 of attempt 2 line 199")


async def test_a_reader_is_not_pulled_to_the_next_attempt(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.shows("rank0 of attempt 1")
        await it.press("pageup")
        before = it.rows
        it.feed.change_run("vast-a", RUN, attempt=2)
        await eventually(lambda: "attempt 1 of 2, > is later" in it.header)
        assert it.rows == before
        await it.press("greater_than_sign")
        await it.shows("rank0 of attempt 2 line 199")


async def test_an_unreachable_host_is_named_and_what_is_loaded_stays(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.shows("line 199")
        it.app.store.set_link("vast-a", Link.UNREACHABLE, "no route", since=1_000_000.0)
        await eventually(lambda: "✕ unreachable since" in it.title)
        await eventually(lambda: "unreachable" in it.header)
        await it.shows("line 199")
        it.app.store.set_link("vast-a", Link.LIVE)
        await eventually(lambda: "follow" in it.title)


async def test_an_ended_run_says_so(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        it.feed.change_run("vast-a", RUN, state="failed", ended=it.feed.time, exit_code=1)
        await eventually(lambda: "run ended" in it.title)


async def test_escape_unmarks_and_then_leaves(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        await it.shows("line 199")
        await it.pilot.press("space")
        await it.pilot.press("escape")
        assert isinstance(it.app.screen, LogsScreen)
        await it.pilot.press("escape")
        await eventually(lambda: not isinstance(it.app.screen, LogsScreen))
        await eventually(lambda: not any(source.sinks for source in it.streams.sources.values()))


async def test_a_run_that_nobody_knows(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        it.app.open_logs("lost-run", 0)
        said = "no host that answers knows the run lost-run"
        await eventually(lambda: any(said in tabs.text for tabs in it.app.screen.query(StreamTabs)))


async def test_the_keys_that_matter_are_in_the_last_line(tmp_path: Path) -> None:
    async with driven(tmp_path) as it:
        words = it.app.screen.query_one("KeyBar", Lines).text
        for word in ("/ search", "f follow", "[ ] rank", "m merged", "w wrap", "t time"):
            assert word in words
