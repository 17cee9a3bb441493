"""The connection to one host, kept alive: connect, install, take in, back off, resume.

A session is one task that runs as long as the host is in the fleet. It writes all that it learns into the
store, the state of its own connection included, and is the boundary at which every failure of a host ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from agent import wire

from .agent_archive import archive
from .bootstrap import start_agent, why_ended
from .channel import REQUEST_SECONDS, AgentChannel
from .errors import (
    AuthFailed,
    EncampError,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnfit,
    RequestRefused,
    Unreachable,
)
from .follows import Follows, Key
from .hosts import Host
from .log_source import LogSink
from .patience import within
from .prompts import Prompts
from .sanitize import printable
from .ssh.client import ExecChannel, SshClient, SshConnection
from .store import HostView, Link, Store

log = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 1.0, 30.0
"""Seconds until the next attempt to connect: the wait doubles up to the last."""

JITTER = 0.25
"""By which part of it a wait is made longer or shorter, so that many sessions do not come at once."""

RECONNECTING_SECONDS = 15.0
"""A host that was lost counts as being reconnected for so long, then as unreachable since it was lost."""


class LogRange(NamedTuple):
    """A piece of a log: `data` begins at `offset`, the file has `size` bytes; `ended`: it is final."""

    offset: int
    data: bytes
    size: int
    ended: bool


class Session:
    """One host's connection. `run` is its task; everything else may be called from other tasks of the loop.

    With `keep_trying` it never gives up; without, `run` returns after the first failure or loss, which
    `connected` and `check` then raise. `client` is shared by the sessions of a fleet.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        prompts: Prompts,
        *,
        keep_trying: bool = True,
        client: SshClient | None = None,
    ) -> None:
        self.host = host
        self.store = store
        self.view: HostView = store.add_host(host.name, host.address)
        self._prompts = _Watched(self, prompts)
        self._keep_trying = keep_trying
        self._client = client or SshClient()
        self._channel: AgentChannel | None = None
        self._connection: SshConnection | None = None
        self._follows = Follows()
        self._task: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._problem: HostError | None = None
        """What ended the last attempt or connection; None while connected."""
        self._halted = False
        """No further attempt will be made by itself: a person has to help, or the session is over."""
        self._retry = asyncio.Event()
        self._failures = 0
        """Attempts that failed in a row."""
        self._was_live = False
        self._lost_at: float | None = None
        """Wall clock of the loss of a connection that has not been made again."""
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    @property
    def live(self) -> bool:
        """Whether the agent is connected and has sent all its runs."""
        channel = self._channel
        return channel is not None and not channel.closed and self.view.link is Link.LIVE

    async def run(self) -> None:
        """Keep the connection until the task is cancelled or `close` is called."""
        self._task = asyncio.current_task()
        try:
            self._show(Link.CONNECTING)
            while True:
                problem = await self._attempt()
                self._problem = problem
                if not self._keep_trying:
                    self._show_problem(problem)
                    return
                await self._pause(problem)
        except asyncio.CancelledError:
            self._show(Link.IDLE)
            raise
        finally:
            self._halted = True
            self._problem = self._problem or Unreachable(f"The connection to {self.name} was closed.")
            self._wake()

    async def connected(self, timeout: float | None = None, *, patient: bool = True) -> None:
        """Wait until the host is live: its runs are in the store, requests can be made.

        Raises the HostError that keeps it from it: at once when trying again needs a person, and with
        `patient` off after any failure; else after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self.live:
            self.check()
            if self._problem is not None and not patient:
                raise self._problem
            waiter = loop.create_future()
            self._waiters.add(waiter)
            try:
                await within(None if deadline is None else max(0, deadline - loop.time()), waiter)
            except TimeoutError:
                raise self._problem or Unreachable(
                    f"{self.name} was not connected within {timeout:g} s.", "Give it more time."
                ) from None
            finally:
                self._waiters.discard(waiter)

    def check(self) -> None:
        """Raise the HostError that ended the session, or that needs a person's help; else do nothing."""
        if self._halted and self._problem is not None:
            raise self._problem

    def retry_now(self) -> None:
        """Connect at once instead of at the next planned moment, also where a person had to help first."""
        if not self.live:
            self._failures = 0
            self._retry.set()

    async def close(self) -> None:
        """End the session; `run` ends with it."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def request(
        self, method: str, params: Mapping[str, Any], timeout: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        """Ask the agent. Raises RequestRefused; Unreachable when not connected, or not answered in time."""
        if self._channel is None or not self.live:
            self.check()
            if self._problem is not None:
                raise Unreachable(self._problem.message, self._problem.hint)
            raise Unreachable(
                f"{self.name} is not connected.", "It is being connected; try again when it is."
            )
        try:
            return await self._channel.request(method, dict(params), timeout)
        except RequestRefused as error:
            # The host does not know what it is called here, and may have a command to offer.
            error.hint = error.hint.replace("--on HOST", f"--on {self.name}")
            raise

    async def open_bulk(self, command: str) -> ExecChannel:
        """Start a command with much output on the host, over the same connection. Raises HostError."""
        if self._connection is None or not self.live:
            self.check()
            raise Unreachable(f"{self.name} is not connected.")
        return await self._connection.open_exec(command, bulk=True)

    async def read_log(self, run: str, attempt: int, stream: str, offset: int, length: int) -> LogRange:
        """A range of a log; a negative offset counts from the end. At most `wire.MAX_CHUNK` bytes come.

        Raises RequestRefused (`no-run`, `no-stream`), Unreachable.
        """
        params = {"run": run, "attempt": attempt, "stream": stream, "offset": offset, "length": length}
        answer = await self.request("log_read", params)
        try:
            part = LogRange(answer["offset"], wire.payload(answer["data"]), answer["size"], answer["ended"])
            if type(part.offset) is int and type(part.size) is int and type(part.ended) is bool:
                return part
        except (KeyError, TypeError, wire.WireError):
            pass
        raise HostError(f"The agent on {self.name} answers in a way that makes no sense.")

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: LogSink) -> None:
        """Give `sink` the stream from `offset` on, until `unfollow_log`: across reconnects, each byte once.

        While the host cannot be asked it starts as soon as it can. Raises RequestRefused when the host does
        not know the run.
        """
        key = (run, attempt, stream)
        self._follows.add(key, offset, sink)
        if self.live:
            try:
                await self._follow(key)
            except RequestRefused:
                self._follows.remove(key, sink)
                raise
            except Unreachable:
                pass  # it is asked for again on reconnecting

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: LogSink) -> None:
        """Give `sink` nothing more."""
        if self._follows.remove((run, attempt, stream), sink) and self.live:
            try:
                await self.request("log_unfollow", {"run": run, "attempt": attempt, "stream": stream})
            except EncampError:
                pass  # then nothing is followed any more, or what still comes finds no reader

    # --- one attempt ----------------------------------------------------------------------------------------

    async def _attempt(self) -> HostError:
        """Connect and take in what the agent says until that ends, and return why it did."""
        try:
            await self._connect_and_serve()
        except HostError as error:
            return error
        except EncampError as error:
            return HostError(error.message, error.hint)
        except Exception as error:  # one host never takes the app down
            log.exception("the session of %s failed", self.name)
            return HostError(f"encamp itself failed: {type(error).__name__}: {error}.", "Please report this.")
        finally:
            if self.view.link is Link.LIVE:
                self._lost_at = time.time()

    async def _connect_and_serve(self) -> NoReturn:
        connection = await self._client.connect(self.host, self._prompts)
        self._connection = connection
        try:
            started = await start_agent(
                connection,
                self.host,
                await asyncio.to_thread(archive),
                keep=self._was_live,
                on_install=lambda: self._show(Link.INSTALLING),
            )
            self._channel = AgentChannel(started.command, started.head, self._count_bad)
            try:
                async for message in self._channel:
                    self._take(message)
                raise await why_ended(started.command, self.host)
            finally:
                channel, self._channel = self._channel, None
                if self._resuming is not None:
                    self._resuming.cancel()
                await channel.close()
        finally:
            self._connection = None
            await connection.close()

    def _take(self, message: wire.Message) -> None:
        if isinstance(message, wire.Log):
            try:
                self._follows.take_log(message)
            except wire.WireError as error:
                self._count_bad(str(error))
            return
        if isinstance(message, wire.Gap):
            self._follows.take_gap(message)
            return
        if isinstance(message, wire.Hello) and message.protocol_major != wire.PROTOCOL[0]:
            version = printable(message.version)[:40]
            raise HostUnfit(
                f"The agent on {self.name} (encamp {version}) speaks another protocol than we do.",
                "Use the same version of encamp on all machines from which you look at this host.",
            )
        self.store.apply(self.name, message)
        if isinstance(message, wire.Ready):
            self._became_live()

    def _became_live(self) -> None:
        self._problem = None
        self._lost_at = None
        self._failures = 0
        self._was_live = True
        self._show(Link.LIVE)
        self._wake()
        self._resuming = asyncio.ensure_future(self._resume())

    async def _resume(self) -> None:
        """Follow again what was followed before, from where each reader is."""
        for key, _ in self._follows.wanted():
            try:
                await self._follow(key)
            except RequestRefused as error:
                log.warning("%s: %s is not followed any more: %s", self.name, key, error)
                self._follows.drop(key)
            except Unreachable:
                return

    async def _follow(self, key: Key) -> None:
        run, attempt, stream = key
        offset = self._follows.start(key)
        await self.request("log_follow", {"run": run, "attempt": attempt, "stream": stream, "offset": offset})

    def _count_bad(self, reason: str) -> None:
        log.info("%s sent what is no message: %s", self.name, reason)
        self.store.count_bad_message(self.name)

    # --- between attempts -----------------------------------------------------------------------------------

    async def _pause(self, problem: HostError) -> None:
        """Wait until it is time for the next attempt, or until somebody wants it now."""
        self._retry.clear()
        delay: float | None = None
        if problem.retryable:
            delay = min(FIRST_RETRY * 2**self._failures, LAST_RETRY) * random.uniform(1 - JITTER, 1 + JITTER)
        else:
            self._halted = True
        self._failures += 1
        self._show_problem(problem, delay)
        self._wake()
        try:
            await within(delay, self._retry.wait())
            self._show(Link.CONNECTING)
        except TimeoutError:
            self._show_problem(problem)
        self._halted = False

    def _show_problem(self, problem: HostError, delay: float | None = None) -> None:
        link, since = _LINKS.get(type(problem), Link.REFUSED), None
        if problem.retryable:
            since = self._lost_at
            fresh = since is not None and time.time() - since < RECONNECTING_SECONDS
            link = Link.RECONNECTING if fresh and self._keep_trying else Link.UNREACHABLE
        retry_at = None if delay is None else time.monotonic() + delay
        self.store.set_link(self.name, link, problem.message, problem.hint, retry_at, since)

    def _show(self, link: Link) -> None:
        self.store.set_link(self.name, link)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Watched:
    """Prompts that show on the host's row that a person is being waited for."""

    def __init__(self, session: Session, prompts: Prompts) -> None:
        self._session = session
        self._prompts = prompts

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        """Ask, as `new host key`."""
        view = self._session.view
        before = view.link
        self._session.store.set_link(view.name, Link.CONFIRM_KEY, f"{key_type} {fingerprint}")
        try:
            return await self._prompts.accept_host_key(host, key_type, fingerprint)
        finally:
            self._session.store.set_link(view.name, before)

    async def password(self, host: Host, prompt: str) -> str | None:
        """Ask."""
        return await self._prompts.password(host, prompt)

    async def passphrase(self, host: Host, path: str) -> str | None:
        """Ask."""
        return await self._prompts.passphrase(host, path)


_LINKS: dict[type[HostError], Link] = {
    HostKeyChanged: Link.KEY_CHANGED,
    HostKeyUnknown: Link.CONFIRM_KEY,
    AuthFailed: Link.AUTH_FAILED,
}
