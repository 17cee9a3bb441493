"""All hosts of the inventory and one session for each: who starts them, and who ends them."""

from __future__ import annotations

import asyncio

from .errors import UsageError
from .hosts import Host, Inventory
from .prompts import Prompts
from .session import Session
from .ssh.client import SshClient
from .store import Store


class Fleet:
    """The sessions of the app. Hosts come and go at any time; the inventory is the caller's to write."""

    def __init__(self, inventory: Inventory, store: Store, prompts: Prompts) -> None:
        self.inventory = inventory
        self.store = store
        self.prompts = prompts
        """Whom sessions ask that begin from now on; the app puts itself here."""
        self._client = SshClient()
        self._sessions: dict[str, Session] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to connect to every host of the inventory. Raises UsageError when it cannot be read."""
        for host in self.inventory.load():
            self.add(host)

    def add(self, host: Host) -> Session:
        """Begin to connect to a host; one that is there under this name already is kept."""
        session = self._sessions.get(host.name)
        if session is None:
            session = Session(host, self.store, self.prompts, client=self._client)
            self._sessions[host.name] = session
            self._tasks[host.name] = asyncio.create_task(session.run(), name=f"session {host.name}")
        return session

    async def remove(self, name: str) -> None:
        """Disconnect from a host and forget it; what runs there goes on."""
        session = self._sessions.pop(name, None)
        if session is not None:
            await session.close()
            await asyncio.wait([self._tasks.pop(name)])
        self.store.remove_host(name)

    def session(self, name: str) -> Session:
        """The session of a host. Raises UsageError when there is none of that name."""
        try:
            return self._sessions[name]
        except KeyError:
            raise UsageError(
                f"There is no host {name}.", f"The hosts are: {', '.join(self._sessions)}"
            ) from None

    def sessions(self) -> list[Session]:
        """All sessions, in the order in which they were added."""
        return list(self._sessions.values())

    async def close(self) -> None:
        """Disconnect from all hosts."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._sessions.clear()
        self._tasks.clear()
