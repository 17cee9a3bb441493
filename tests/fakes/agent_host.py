"""A host without SSH: it answers the installer's script with an agent that the test holds in its hands."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from agent import wire
from tui.fleet.errors import HostError
from tui.fleet.hosts import Host
from tui.fleet.prompts import Prompts

HELLO = wire.Hello(
    1, 0, "0.1.0", "b" * 64, "h" * 32, "boot", "box", "root", "/root/.encamp", "python3", 1, 1.0, 1.0
)  # fmt: skip


class Relay:
    """One connection to the agent: what the viewer asked, and what it is told."""

    exit_status: int | None = None

    def __init__(self, command: str, answer: Callable[[str, dict[str, Any]], wire.Message | None]) -> None:
        halves = re.search(r"a=(\w+); n=\$\{a\}(\w+);", command)
        assert halves
        self.keep = "--keep" in command
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._out.put_nowait(f"{halves[1]}{halves[2]}\n".encode())

    def say(self, *messages: wire.Message) -> None:
        """Send messages to the viewer."""
        for message in messages:
            self._out.put_nowait(wire.encode(message))

    def say_raw(self, line: bytes) -> None:
        """Send any bytes."""
        self._out.put_nowait(line)

    def cut(self, exit_status: int | None = None) -> None:
        """End the connection: by itself with an exit code, or without one as a lost network does."""
        self.exit_status = exit_status
        self._out.put_nowait(b"")

    async def read(self, limit: int) -> bytes:
        data = await self._out.get()
        if not data:
            self._out.put_nowait(data)
        return data

    async def write(self, data: bytes) -> None:
        fields = json.loads(data)
        self.requests.append((fields["method"], fields["params"]))
        message = self._answer(fields["method"], fields["params"])
        if isinstance(message, wire.Reply):
            self.say(wire.Reply(fields["id"], message.result))
        elif isinstance(message, wire.Failure):
            self.say(wire.Failure(fields["id"], message.code, message.message, message.hint))

    async def wait(self, seconds: float) -> None:
        pass

    def stderr_tail(self) -> bytes:
        return b"encamp: it said why\n"

    async def close(self) -> None:
        self.cut(self.exit_status)


class FakeClient:
    """Stands in for `SshClient`: connects to one fake host, or fails as it is told to."""

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.attempts = 0
        self.relays: list[Relay] = []
        self.hello: wire.Hello | None = HELLO
        self.answers: dict[str, wire.Message] = {}
        """What each method is answered with; a method that is not here gets an empty reply."""
        self.ask_key = False

    @property
    def relay(self) -> Relay:
        """The newest connection."""
        return self.relays[-1]

    async def connect(self, host: Host, prompts: Prompts) -> FakeClient:
        self.attempts += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        if self.ask_key and not await prompts.accept_host_key(host, "ssh-ed25519", "SHA256:x"):
            raise HostError("refused")
        return self

    async def open_exec(self, command: str) -> Relay:
        relay = Relay(command, lambda method, _: self.answers.get(method, wire.Reply(0, {})))
        self.relays.append(relay)
        if self.hello is not None:
            relay.say(self.hello, wire.Ready())
        return relay

    async def close(self) -> None:
        pass
