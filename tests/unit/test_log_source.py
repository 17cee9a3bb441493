"""A session as a log's source: answers of a host that make no sense are refused, and its state is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent import wire
from tui.fleet.errors import EncampError
from tui.fleet.log_source import Condition, LogSink, SessionSource, stream_label
from tui.fleet.store import Link, Store

RUN = wire.Run("gpt", "gpt", "gpt", "ddp", 2, "running", "", 0.0, 0.0, None, 2, 2, "python", ("python",), "/")


class Answers:
    """A session that answers whatever it is told to."""

    name = "host"

    def __init__(self) -> None:
        self.store = Store()
        self.store.add_host("host", "host:22")
        self.part: tuple[int, bytes, int, bool] = (0, b"", 0, False)
        self.found: dict[str, Any] = {}

    async def read_log(
        self, run: str, attempt: int, stream: str, offset: int, length: int
    ) -> tuple[int, bytes, int, bool]:
        return self.part

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: LogSink) -> None:
        pass

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: LogSink) -> None:
        pass

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        assert method == "log_search"
        return self.found


@pytest.fixture
def session() -> Answers:
    return Answers()


@pytest.fixture
def source(session: Answers) -> SessionSource:
    return SessionSource(session, "gpt", 1, "rank3")


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (100, (99, b"x", 200, False)),
        (100, (100, b"xxxxxxxxxxx", 200, False)),
        (-10, (-5, b"x", 5, False)),
        (-10, (10, b"xxx", 12, False)),
    ],
)
async def test_another_part_than_asked_for_is_refused(
    session: Answers, source: SessionSource, asked: int, part: tuple[int, bytes, int, bool]
) -> None:
    session.part = part
    with pytest.raises(EncampError, match="another part"):
        await source.read(asked, 10)


async def test_the_right_part_is_taken(session: Answers, source: SessionSource) -> None:
    session.part = (100, b"0123456789", 200, True)
    assert (await source.read(100, 10)).data == b"0123456789"
    session.part = (190, b"0123456789", 200, True)
    assert (await source.read(-10, 10)).offset == 190


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "found",
    [
        {},
        {"offset": None, "scanned_to": None, "more": False},
        {"offset": "7", "scanned_to": 7, "more": False},
        {"offset": True, "scanned_to": 100, "more": False},
        {"offset": None, "scanned_to": 100, "more": True},
        {"offset": -1, "scanned_to": 100, "more": False},
    ],
)
async def test_a_search_that_does_not_get_on_is_refused(
    session: Answers, source: SessionSource, found: dict[str, Any], backward: bool
) -> None:
    session.found = found
    with pytest.raises(EncampError, match="no sense"):
        await source.search("x", 100, backward=backward, ignore_case=False)


async def test_matches_are_on_the_side_that_was_asked_for(session: Answers, source: SessionSource) -> None:
    for offset, backward, good in (
        (100, False, True),
        (99, True, True),
        (99, False, False),
        (100, True, False),
    ):
        session.found = {"offset": offset, "scanned_to": offset, "more": False}
        if good:
            assert (await source.search("x", 100, backward=backward, ignore_case=False)).offset == offset
        else:
            with pytest.raises(EncampError):
                await source.search("x", 100, backward=backward, ignore_case=False)


def test_the_condition_follows_the_store(session: Answers, source: SessionSource) -> None:
    assert source.label == stream_label("rank3") == "rank 3"
    session.store.apply("host", RUN)
    session.store.set_link("host", Link.LIVE)
    assert source.condition() == Condition(ended=True)  # attempt 2 has begun
    session.store.set_link("host", Link.UNREACHABLE)
    since = session.store.hosts["host"].since
    assert source.condition() == Condition("unreachable", since, True)
    session.store.remove_host("host")
    assert source.condition().trouble
