"""The framing and the matching of answers, over a stream that the test holds in its hands."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from tui.fleet import channel as channel_module
from tui.fleet.channel import AgentChannel, Lines
from tui.fleet.errors import RequestRefused, Unreachable


class FakeStream:
    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.closed = False

    def say(self, *messages: wire.Message) -> None:
        self.incoming.put_nowait(b"".join(map(wire.encode, messages)))

    async def read(self, limit: int) -> bytes:
        return await self.incoming.get()

    async def write(self, data: bytes) -> None:
        self.sent.put_nowait(json.loads(data))

    async def close(self) -> None:
        self.closed = True
        self.incoming.put_nowait(b"")


async def collect(channel: AgentChannel) -> list[wire.Message]:
    return [message async for message in channel]


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.randoms())
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], random: Any) -> None:
    data = b"".join(line + b"\n" for line in lines)
    cutter = Lines(lambda _: None)
    found = []
    while data:
        size = random.randint(1, 30)
        found += cutter.feed(data[:size])
        data = data[size:]
    assert found == [line for line in lines if line]


@pytest.mark.parametrize("chunk", [1000, 65536, 10**7])
def test_a_line_that_is_too_long_is_dropped_and_reported_once(chunk: int) -> None:
    bad: list[str] = []
    cutter = Lines(bad.append)
    data = b"before\n" + b"x" * (3 * wire.MAX_LINE) + b"\nafter\n" + b"y" * (wire.MAX_LINE - 1) + b"\n"
    found = []
    for start in range(0, len(data), chunk):
        found += cutter.feed(data[start : start + chunk])
    assert [line[:9] for line in found] == [b"before", b"after", b"yyyyyyyyy"]
    assert len(bad) == 1


async def test_messages_and_answers_find_their_way() -> None:
    stream = FakeStream()
    channel = AgentChannel(stream, head=wire.encode(wire.Ready()))
    reading = asyncio.create_task(collect(channel))
    first = asyncio.create_task(channel.request("ping", {}))
    second = asyncio.create_task(channel.request("stop", {"run": "r"}))
    ids = {}
    for _ in range(2):
        request = await stream.sent.get()
        ids[request["method"]] = request["id"]
    stream.say(
        wire.Failure(ids["stop"], "no-run", "There is no run r.", "Look again."),
        wire.Event("r", 1, 1.0, "n", "a", "t"),
        wire.Reply(ids["ping"], {"time": 1}),
        wire.Reply(999, {"nobody": "asked"}),
    )
    assert await first == {"time": 1}
    with pytest.raises(RequestRefused) as refused:
        await second
    assert (refused.value.code, refused.value.message, refused.value.hint) == (
        "no-run",
        "There is no run r.",
        "Look again.",
    )
    await channel.close()
    assert [type(message) for message in await reading] == [wire.Ready, wire.Event]
    assert stream.closed


async def test_what_is_no_message_is_counted_and_skipped() -> None:
    stream = FakeStream()
    bad: list[str] = []
    channel = AgentChannel(stream, on_bad=bad.append)
    reading = asyncio.create_task(collect(channel))
    for line in (
        b"not json\n",
        b'{"kind":"event"}\n',
        b"\xff\xfe\n",
        b'{"kind":"from-the-future"}\n',
        b"\n",
        wire.encode(wire.Request(1, "ping", {})),
    ):
        stream.incoming.put_nowait(line)
    stream.say(wire.Ready())
    stream.incoming.put_nowait(b"")
    assert await reading == [wire.Ready()]
    assert len(bad) == 4


async def test_a_lost_connection_answers_everybody() -> None:
    stream = FakeStream()
    channel = AgentChannel(stream)
    reading = asyncio.create_task(collect(channel))
    asking = asyncio.create_task(channel.request("stop", {}))
    await stream.sent.get()
    stream.incoming.put_nowait(b"")
    assert await reading == []
    with pytest.raises(Unreachable, match="lost before the agent answered"):
        await asking
    with pytest.raises(Unreachable, match="is closed"):
        await channel.request("ping", {})


async def test_no_answer_in_time() -> None:
    channel = AgentChannel(FakeStream())
    reading = asyncio.create_task(collect(channel))
    with pytest.raises(Unreachable, match="did not answer the request ping"):
        await channel.request("ping", {}, timeout=0.01)
    await channel.close()
    await reading


async def test_silence_is_a_lost_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SILENCE_SECONDS", 0.01)
    with pytest.raises(Unreachable, match="said nothing"):
        await collect(AgentChannel(FakeStream()))


async def test_a_request_that_does_not_fit_is_refused_here() -> None:
    channel = AgentChannel(FakeStream())
    with pytest.raises(RequestRefused, match="too large"):
        await channel.request("launch", {"x": "y" * wire.MAX_LINE})


async def test_a_flood_leaves_room_for_others() -> None:
    stream = FakeStream()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for _ in range(200):
        stream.say(*[wire.Ready()] * 50)
    stream.incoming.put_nowait(b"")
    task = asyncio.create_task(other())
    assert len(await collect(AgentChannel(stream))) == 10_000
    task.cancel()
    assert turns >= 200
