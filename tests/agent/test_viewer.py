"""One viewer by itself: lines however they are cut, bounded queues, newest telemetry only, logs in turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from agent import logs, viewer, wire


class Transport(asyncio.Transport):
    """What the loop would be: takes `room` bytes, then asks to pause, as a slow connection does."""

    def __init__(self, protocol: viewer.Viewer, room: int = 1 << 60) -> None:
        super().__init__()
        self.written: list[wire.Message] = []
        self.reading = True
        self.closed = self.aborted = False
        self.protocol = protocol
        self.room = room
        protocol.connection_made(self)

    def write(self, data: bytes) -> None:
        self.written += [message for line in data.splitlines() if (message := wire.decode(line)) is not None]
        self.room -= len(data)
        if self.room < 0:
            self.protocol.pause_writing()

    def drain(self, room: int) -> None:
        self.room = room
        self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == viewer.BUFFER_BYTES

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True
        self.protocol.connection_lost(None)


class Hub:
    """Notes the requests; answers them when told to."""

    def __init__(self) -> None:
        self.requests: list[wire.Request] = []
        self.gone = 0

    def greet(self, viewer: viewer.Viewer) -> None:
        viewer.send(wire.encode(wire.Ready()))

    def serve(self, viewer: viewer.Viewer, request: wire.Request) -> None:
        self.requests.append(request)

    def left(self, viewer: viewer.Viewer) -> None:
        self.gone += 1


def request(number: int, text: str = "") -> bytes:
    return wire.encode(wire.Request(number, "ping", {"text": text}))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_requests_however_the_bytes_are_cut(data: st.DataObject) -> None:
    lines = data.draw(
        st.lists(
            st.sampled_from([b"good", b"good", b"\n", b"not json\n", b"x" * (2 * wire.MAX_LINE) + b"\n"]),
            max_size=8,
        )
    )
    stream = b"".join(request(number) if line == b"good" else line for number, line in enumerate(lines))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def feed() -> tuple[Hub, viewer.Viewer]:
        hub = Hub()
        eyes = viewer.Viewer(hub)
        Transport(eyes)
        for piece in pieces:
            if piece:
                eyes.data_received(piece)
        eyes.abort()
        return hub, eyes

    hub, eyes = asyncio.run(feed())
    assert [found.id for found in hub.requests] == [n for n, line in enumerate(lines) if line == b"good"]
    assert eyes.bad_lines == len([line for line in lines if line not in (b"good", b"\n")])
    assert hub.gone == 1


async def test_only_so_many_requests_run_and_the_rest_waits_unread() -> None:
    hub = Hub()
    eyes = viewer.Viewer(hub)
    transport = Transport(eyes)
    eyes.data_received(b"".join(request(number) for number in range(viewer.MAX_REQUESTS + 5)))
    assert len(hub.requests) == viewer.MAX_REQUESTS
    assert not transport.reading
    for number in range(viewer.MAX_REQUESTS + 5):
        eyes.answer(wire.Reply(number, {}), number)
    assert len(hub.requests) == viewer.MAX_REQUESTS + 5
    assert transport.reading
    await eventually(lambda: len(transport.written) == viewer.MAX_REQUESTS + 6)


async def test_long_answers_wait_for_everything_that_is_short() -> None:
    eyes = viewer.Viewer(Hub())
    transport = Transport(eyes, room=0)
    await eventually(lambda: len(transport.written) == 1)
    for number in range(3):
        eyes.data_received(request(number))
        eyes.answer(wire.Reply(number, {"data": "x" * viewer.LONG_BYTES}), number)
    eyes.data_received(request(9))
    eyes.answer(wire.Reply(9, {}), 9)
    eyes.update("ranks", wire.encode(wire.Ready()))
    transport.drain(1)
    await eventually(lambda: len(transport.written) == 3)
    assert transport.written[1:] == [wire.Reply(9, {}), wire.Ready()]
    eyes.eof_received()
    transport.drain(1 << 30)
    await eventually(lambda: transport.closed)
    assert [message.id for message in transport.written[3:] if isinstance(message, wire.Reply)] == [0, 1, 2]


async def test_one_id_runs_once_at_a_time() -> None:
    hub = Hub()
    eyes = viewer.Viewer(hub)
    transport = Transport(eyes)
    eyes.data_received(request(7) + request(7))
    assert len(hub.requests) == 1
    eyes.answer(wire.Reply(7, {}), 7)
    eyes.data_received(request(7))
    assert len(hub.requests) == 2
    await eventually(lambda: [type(found) for found in transport.written].count(wire.Failure) == 1)


async def test_a_slow_viewer_gets_the_newest_telemetry_once() -> None:
    eyes = viewer.Viewer(Hub())
    transport = Transport(eyes, room=0)
    await eventually(lambda: transport.written)
    for number in range(1000):
        eyes.update("sample", wire.encode(wire.Reply(number, {"of": "sample"})))
        eyes.update("ranks", wire.encode(wire.Reply(number, {"of": "ranks"})))
    transport.drain(1 << 30)
    await eventually(lambda: len(transport.written) == 3)
    assert [found.id for found in transport.written[1:] if isinstance(found, wire.Reply)] == [999, 999]


async def test_a_viewer_that_lets_changes_pile_up_is_dropped_and_progress_before_it() -> None:
    hub = Hub()
    eyes = viewer.Viewer(hub)
    transport = Transport(eyes, room=0)
    await eventually(lambda: transport.written)
    line = wire.encode(wire.Reply(1, {"text": "x" * 100_000}))
    for _ in range(viewer.QUEUE_PAUSE // len(line) + 50):
        eyes.offer(line)
    assert eyes.dropped_bytes > 40 * len(line)
    assert not transport.aborted
    for _ in range(viewer.QUEUE_LIMIT // len(line) + 1):
        eyes.send(line)
    assert transport.aborted
    assert hub.gone == 1
    eyes.send(line)
    eyes.update("sample", line)
    eyes.answer(wire.Reply(1, {}), 1)
    eyes.close()


async def test_one_that_takes_nothing_for_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "STALL_SECONDS", 0.05)
    hub = Hub()
    eyes = viewer.Viewer(hub)
    transport = Transport(eyes, room=0)
    await eventually(lambda: transport.aborted)
    assert hub.gone == 1


async def test_changes_go_before_logs_and_logs_take_turns(tmp_path: Path) -> None:
    eyes = viewer.Viewer(Hub())
    transport = Transport(eyes)
    for stream in ("rank0", "rank1"):
        path = tmp_path / stream
        path.write_bytes(b"x" * wire.MAX_CHUNK * 6)
        assert eyes.follow(logs.Follower(str(path), "run", 1, stream, 0))
    for _ in range(2):
        await asyncio.sleep(0)  # a few turns of the loop
    assert 1 < len(transport.written) < 13
    eyes.send(wire.encode(wire.Reply(1, {})))
    await eventually(lambda: len(transport.written) == 14)
    streams = [found.stream for found in transport.written if isinstance(found, wire.Log)]
    assert streams == ["rank0", "rank1"] * 6
    at = next(place for place, found in enumerate(transport.written) if isinstance(found, wire.Reply))
    assert at <= 1 + 2 * viewer.LOGS_PER_TURN
    eyes.unfollow(("run", 1, "rank0"))
    with (tmp_path / "rank0").open("ab") as file:
        file.write(b"more")
    with (tmp_path / "rank1").open("ab") as file:
        file.write(b"more")
    await eventually(lambda: len(transport.written) == 15)
    assert isinstance(transport.written[-1], wire.Log)
    assert transport.written[-1].stream == "rank1"
    eyes.abort()


async def test_no_more_streams_than_a_viewer_may_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "MAX_FOLLOWED", 2)
    eyes = viewer.Viewer(Hub())
    Transport(eyes)
    followers = [logs.Follower(str(tmp_path / "none"), "run", 1, f"rank{rank}", 0) for rank in range(3)]
    assert [eyes.follow(follower) for follower in followers] == [True, True, False]
    assert eyes.follow(logs.Follower(str(tmp_path / "none"), "run", 1, "rank0", 9)), "in place of the first"
    eyes.abort()


async def test_a_lost_connection_closes_the_files(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    eyes = viewer.Viewer(Hub())
    transport = Transport(eyes)
    eyes.follow(logs.Follower(str(tmp_path / "log"), "run", 1, "rank0", 0))
    await eventually(lambda: len(transport.written) == 2)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    eyes.abort()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_half_closed_viewer_gets_its_answers_and_no_more() -> None:
    hub = Hub()
    eyes = viewer.Viewer(hub)
    transport = Transport(eyes)
    eyes.data_received(request(1))
    assert eyes.eof_received()
    await asyncio.sleep(0)
    assert not transport.closed
    eyes.answer(wire.Reply(1, {}), 1)
    await eventually(lambda: transport.closed)
    assert isinstance(transport.written[-1], wire.Reply)
    eyes.connection_lost(None)
