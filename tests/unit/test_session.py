"""One host's session against an agent in the test's hands: its states, its retries, its log readers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fakes.agent_host import HELLO, FakeClient
from waiting import eventually

from agent import wire
from agent.bundle import Bundle
from tui.fleet import session as session_module
from tui.fleet.errors import (
    AuthFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnfit,
    RequestRefused,
    Unreachable,
)
from tui.fleet.hosts import Host
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Link, Store

HOST = Host("box", "h")
Open = Callable[..., Session]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(session_module, "archive", lambda: Bundle(b"agent", "a" * 64))


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
async def open_session(client: FakeClient) -> AsyncIterator[Open]:
    """Start sessions of `client`."""
    tasks = []

    def start(**options: Any) -> Session:
        prompts = options.pop("prompts", NoPrompts())
        session = Session(HOST, Store(), prompts, client=client, **options)  # type: ignore[arg-type]
        tasks.append(asyncio.ensure_future(session.run()))
        return session

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Recorder:
    """A log's reader."""

    def __init__(self) -> None:
        self.bytes = b""
        self.gaps: list[tuple[int, int]] = []
        self.offset: int | None = None

    def data(self, offset: int, data: bytes) -> None:
        assert self.offset in (None, offset)
        self.bytes += data
        self.offset = offset + len(data)

    def gap(self, start: int, end: int) -> None:
        assert self.offset in (None, start)
        self.gaps.append((start, end))
        self.offset = end


def log(offset: int, data: bytes) -> wire.Log:
    return wire.log_message("r", 1, "rank0", offset, data)


async def test_live_once_all_runs_are_known(open_session: Open, client: FakeClient) -> None:
    client.hello = None
    session = open_session()
    await eventually(lambda: client.relays)
    assert session.view.link is Link.CONNECTING
    client.relay.say(HELLO)
    await eventually(lambda: session.view.hello)
    assert not session.live
    with pytest.raises(Unreachable, match="not connected"):
        await session.request("ping", {})
    waiting = asyncio.ensure_future(session.connected(5))
    client.relay.say(wire.Ready())
    await waiting
    assert session.live
    assert session.view.link is Link.LIVE
    assert not client.relay.keep
    client.answers["ping"] = wire.Reply(0, {"time": 1})
    assert await session.request("ping", {}) == {"time": 1}
    client.answers["ping"] = wire.Failure(0, "no", "No.", "Never.")
    with pytest.raises(RequestRefused, match=r"No\."):
        await session.request("ping", {})


async def test_a_lost_connection_is_made_again(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    asking = asyncio.ensure_future(session.request("x", {}))
    client.answers["x"] = wire.Event("r", 1, 1.0, "n", "a", "t")  # never answered
    await asyncio.sleep(0)
    client.relay.cut()
    with pytest.raises(Unreachable, match="lost before the agent answered"):
        await asking
    await eventually(lambda: session.view.link is Link.RECONNECTING)
    await session.connected(5)
    assert len(client.relays) == 2
    assert client.relay.keep
    assert session.view.message == ""


async def test_reconnecting_becomes_unreachable_since_the_loss(
    open_session: Open, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RECONNECTING_SECONDS", 0.2)
    monkeypatch.setattr(session_module, "LAST_RETRY", 0.05)
    session = open_session()
    await session.connected(5)
    client.fault = Unreachable("refused", "look")
    lost = time.time()
    client.relay.cut()
    links = set()
    await eventually(lambda: links.add(session.view.link) or session.view.link is Link.UNREACHABLE)
    assert links <= {Link.LIVE, Link.RECONNECTING, Link.UNREACHABLE}
    assert Link.RECONNECTING in links
    view = session.view
    assert lost <= view.since <= lost + 0.15
    assert (view.message, view.hint) == ("refused", "look")
    # It stays so while it is tried again and again, until it works.
    attempts = client.attempts
    await eventually(lambda: client.attempts > attempts + 2)
    assert view.link is Link.UNREACHABLE
    client.fault = None
    await session.connected(5)
    assert view.link is Link.LIVE
    assert view.since > lost + 0.15


async def test_retries_back_off(
    open_session: Open, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(session_module, "LAST_RETRY", 0.16)
    client.fault = Unreachable("refused")
    session = open_session()
    waits = []

    def planned() -> bool:
        at = session.view.retry_at
        if at is not None and (not waits or waits[-1][0] != at):
            waits.append((at, at - time.monotonic()))
        return len(waits) == 6

    await eventually(planned)
    planned_waits = [wait for _, wait in waits]
    assert all(wait <= 0.16 * 1.25 for wait in planned_waits)
    assert planned_waits[3] > planned_waits[0]
    assert planned_waits[5] > 0.1


async def test_retry_now(open_session: Open, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_RETRY", 1000.0)
    monkeypatch.setattr(session_module, "LAST_RETRY", 1000.0)
    client.fault = Unreachable("refused")
    session = open_session()
    await eventually(lambda: session.view.retry_at)
    assert session.view.retry_at is not None
    assert session.view.retry_at > time.monotonic() + 700
    with pytest.raises(Unreachable, match="refused"):
        await session.connected(0.01)
    client.fault = None
    session.retry_now()
    await session.connected(5)
    session.retry_now()  # changes nothing
    assert client.attempts == 2


@pytest.mark.parametrize(
    ("error", "link"),
    [
        (AuthFailed("no", "key"), Link.AUTH_FAILED),
        (HostKeyChanged("changed"), Link.KEY_CHANGED),
        (HostKeyUnknown("unknown"), Link.CONFIRM_KEY),
        (HostUnfit("no python"), Link.REFUSED),
        (HostError("config"), Link.REFUSED),
        (ZeroDivisionError("a bug"), Link.REFUSED),
    ],
)
async def test_what_needs_a_person_waits_for_one(
    open_session: Open, client: FakeClient, error: Exception, link: Link
) -> None:
    client.fault = error
    session = open_session()
    with pytest.raises(HostError, match=str(error)) as caught:
        await session.connected(5)
    assert not caught.value.retryable
    with pytest.raises(HostError):
        session.check()
    assert session.view.link is link
    assert session.view.retry_at is None
    assert session.view.message == caught.value.message
    assert client.attempts == 1
    client.fault = None
    session.retry_now()
    await eventually(lambda: session.live)
    session.check()
    assert client.attempts == 2


async def test_without_patience_the_first_failure_counts(open_session: Open, client: FakeClient) -> None:
    client.fault = Unreachable("refused")
    session = open_session()
    with pytest.raises(Unreachable, match="refused"):
        await session.connected(5, patient=False)


async def test_a_request_says_why_there_is_no_connection(open_session: Open, client: FakeClient) -> None:
    client.fault = Unreachable("No route to host.", "Is it on?")
    session = open_session()
    with pytest.raises(Unreachable):
        await session.connected(5, patient=False)
    with pytest.raises(Unreachable, match="No route to host") as refusal:
        await session.request("x", {})
    assert refusal.value.hint == "Is it on?"


async def test_one_connection_and_no_more(open_session: Open, client: FakeClient) -> None:
    session = open_session(keep_trying=False)
    await session.connected(5)
    client.relay.cut()
    await eventually(lambda: session.view.link is Link.UNREACHABLE)
    with pytest.raises(Unreachable, match="was lost"):
        await session.connected(5)
    assert client.attempts == 1


async def test_closing(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    await session.close()
    assert session.view.link is Link.IDLE
    with pytest.raises(Unreachable, match="closed"):
        await session.connected(5)
    with pytest.raises(Unreachable):
        await session.request("ping", {})
    await session.close()


async def test_the_user_is_waited_for_visibly(open_session: Open, client: FakeClient) -> None:
    class Waiting(NoPrompts):
        def __init__(self) -> None:
            super().__init__()
            self.answer = asyncio.Event()

        async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
            await self.answer.wait()
            return True

    person = Waiting()
    client.ask_key = True
    session = open_session(prompts=person)
    await eventually(lambda: session.view.link is Link.CONFIRM_KEY)
    assert session.view.message == "ssh-ed25519 SHA256:x"
    person.answer.set()
    await session.connected(5)


async def test_another_protocol_is_refused(open_session: Open, client: FakeClient) -> None:
    client.hello = dataclasses.replace(HELLO, protocol_major=2, version="9.0")
    session = open_session()
    with pytest.raises(HostUnfit, match=r"encamp 9\.0.* another protocol"):
        await session.connected(5)


async def test_an_agent_that_went_says_why(open_session: Open, client: FakeClient) -> None:
    client.hello = None
    session = open_session()
    await eventually(lambda: client.relays)
    client.relay.cut(1)
    await eventually(lambda: session.view.link is Link.UNREACHABLE)
    assert session.view.message == "The agent's relay on box ended with exit code 1: encamp: it said why"
    await eventually(lambda: len(client.relays) == 2)
    client.relay.cut(92)
    with pytest.raises(HostUnfit, match="The agent on box does not start: it said why"):
        await session.connected(5)


async def test_bad_messages_are_counted(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    client.relay.say_raw(b"rubbish\n")
    client.relay.say(wire.Log("r", 1, "rank0", 0, "not base64!"))
    client.relay.say(wire.Event("r", 1, 1.0, "n", "a", "t"))
    await eventually(lambda: session.view.bad_messages == 2)
    assert session.live


async def test_a_log_is_followed_across_connections(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    reader = Recorder()
    await session.follow_log("r", 1, "rank0", 10, reader)  # before there is a connection
    await session.connected(5)
    await eventually(lambda: client.relay.requests)
    key = {"run": "r", "attempt": 1, "stream": "rank0"}
    assert client.relay.requests == [("log_follow", {**key, "offset": 10})]
    client.relay.say(log(10, b"abc"), log(13, b"def"))
    await eventually(lambda: reader.offset == 16)
    client.relay.cut()
    await eventually(lambda: len(client.relays) == 2 and client.relay.requests)
    assert client.relay.requests == [("log_follow", {**key, "offset": 16})]
    # What was sent twice is cut, what is of other streams is not ours, what is missing is a gap.
    client.relay.say(
        log(14, b"efgh"),
        wire.log_message("r", 2, "rank0", 18, b"other"),
        wire.log_message("r", 1, "rank1", 18, b"other"),
        wire.Gap("r", 1, "rank0", 18, 30),
        log(35, b"x"),
    )
    await eventually(lambda: reader.offset == 36)
    assert reader.bytes == b"abcdefghx"
    assert reader.gaps == [(18, 30), (30, 35)]
    await session.unfollow_log("r", 1, "rank0", reader)
    assert client.relay.requests[-1] == ("log_unfollow", key)
    client.relay.say(log(36, b"late"), wire.Ready())
    await eventually(lambda: len(client.relay.requests) == 2)
    assert reader.offset == 36


async def test_two_readers_of_one_stream(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    first, second = Recorder(), Recorder()
    await session.follow_log("r", 1, "rank0", 100, first)
    client.relay.say(log(100, b"0123"))
    await eventually(lambda: first.offset == 104)
    await session.follow_log("r", 1, "rank0", 98, second)
    assert client.relay.requests[-1][1]["offset"] == 98
    client.relay.say(log(98, b"ab012345"))
    await eventually(lambda: first.offset == second.offset == 106)
    assert (first.bytes, second.bytes) == (b"012345", b"ab012345")
    asked = len(client.relay.requests)
    await session.unfollow_log("r", 1, "rank0", second)
    assert len(client.relay.requests) == asked  # the other one still reads
    client.relay.say(log(106, b"6"))
    await eventually(lambda: first.offset == 107)
    assert second.offset == 106


async def test_a_reader_that_fails_harms_nobody(open_session: Open, client: FakeClient) -> None:
    class Broken(Recorder):
        calls = 0

        def data(self, offset: int, data: bytes) -> None:
            self.calls += 1
            raise RuntimeError("a bug in a widget")

    session = open_session()
    await session.connected(5)
    broken, reader = Broken(), Recorder()
    await session.follow_log("r", 1, "rank0", 0, broken)
    await session.follow_log("r", 1, "rank0", 0, reader)
    client.relay.say(log(0, b"abc"), log(3, b"def"))
    await eventually(lambda: reader.offset == 6)
    assert broken.calls == 1
    assert session.live
    assert len(client.relays) == 1


async def test_a_log_that_is_gone_is_not_followed_again(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    client.answers["log_follow"] = wire.Failure(0, "no-run", "There is no run r.")
    reader = Recorder()
    with pytest.raises(RequestRefused, match="no run r"):
        await session.follow_log("r", 1, "rank0", 0, reader)
    client.relay.cut()
    await eventually(lambda: len(client.relays) == 2)
    await session.connected(5)
    await session.request("ping", {})
    assert [method for method, _ in client.relay.requests] == ["ping"]


async def test_reading_a_range(open_session: Open, client: FakeClient) -> None:
    session = open_session()
    await session.connected(5)
    client.answers["log_read"] = wire.Reply(0, {"offset": 3, "data": "aGk=", "size": 9, "ended": True})
    assert await session.read_log("r", 1, "rank0", 3, 100) == (3, b"hi", 9, True)
    for wrong in (
        {},
        {"offset": "3", "data": "aGk=", "size": 9, "ended": True},
        {"offset": 3, "data": "?", "size": 9, "ended": True},
        {"offset": 3, "data": 7, "size": 9, "ended": True},
        {"offset": 3, "data": "aGk=", "size": None, "ended": 1},
    ):
        client.answers["log_read"] = wire.Reply(0, wrong)
        with pytest.raises(HostError, match="makes no sense"):
            await session.read_log("r", 1, "rank0", 3, 100)
