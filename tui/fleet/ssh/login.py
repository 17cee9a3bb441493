"""The questions of a login and their answers: what a host asks for, and how long to wait for it."""

# ruff: noqa: ARG002 (the signatures are asyncssh's)
from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import asyncssh

from ..hosts import Host
from ..prompts import Prompts
from .route import Route
from .secrets import TRIES, Secrets

TCP_SECONDS = 10.0
"""How long the host may take to accept a connection."""

LOGIN_SECONDS = 20.0
"""How long it may take from there to a finished login, the user's typing not counted."""


class Patience:
    """The time a connection may still take. The clock stands still while a person is asked."""

    def __init__(self) -> None:
        self._deadline = self._now() + TCP_SECONDS
        self._asking = 0

    def login_begins(self) -> None:
        """The host has accepted the connection."""
        self._deadline = self._now() + LOGIN_SECONDS

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Wait for a person, who may take any time."""
        remaining = self.remaining()
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._deadline = self._now() + remaining

    def remaining(self) -> float:
        """Seconds until the connection is given up; at least one while a person is asked."""
        left = self._deadline - self._now()
        return max(left, 1.0) if self._asking else left

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class Login(asyncssh.SSHClient):
    """What asyncssh calls while it connects to one host, and what came of it."""

    def __init__(
        self, host: Host, route: Route, prompts: Prompts, secrets: Secrets, patience: Patience
    ) -> None:
        self._host = host
        self._route = route
        self._prompts = prompts
        self._secrets = secrets
        self.patience = patience
        self._given: set[str] = set()
        self._asked = 0
        self.connected = False
        """Whether the host has accepted the connection."""
        self.banner = ""
        """What the host shows before the login."""
        self.shown_key: asyncssh.SSHKey | None = None
        """The host's key, when it is not one that we know."""
        self.interactive = False
        """Whether the host would have taken a password."""
        self.declined = False
        """Whether the user was asked for one and gave none."""
        self.wanted_keys: list[Path] = []
        """Keys that the host would accept, once they are unlocked."""
        self.locked_keys: tuple[Path, ...] = ()
        """Keys that the user did not unlock when asked."""
        self.unusable_keys: tuple[Path, ...] = ()
        """Files that were to be keys and are none that we can use."""
        self.lost = asyncio.Event()
        self.loss: Exception | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Grant the login its own time."""
        self.connected = True
        self.patience.login_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why."""
        self.loss = exc
        self.lost.set()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Called for a key that is not trusted: keep it, so that the user can be asked, and refuse."""
        self.shown_key = key
        return False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        """Keep the banner's beginning, for messages."""
        self.banner = (self.banner + msg)[:2000]

    async def password_auth_requested(self) -> str | None:
        """Answer the plain password method."""
        return await self._answer(f"{self._route.address}'s password: ", secret=True)

    def kbdint_auth_requested(self) -> str | None:
        """Take part in keyboard-interactive, unless the user has given up or can unlock a key first."""
        return None if self.declined or self.wanted_keys else ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer one round of questions: a password, a one-time code, or just something to read."""
        answers = []
        for prompt, echo in prompts:
            # A code is good for one login only: what is typed visibly, or is no password, is asked for anew.
            secret = not echo and "password" in prompt.lower()
            answer = await self._answer("\n".join(filter(None, (name, instructions, prompt))), secret=secret)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    def passphrase(self, name: str) -> None:
        """The host wants a key that is locked: note it and go on with the next.

        asyncssh asks this in one of few threads, in which nobody may wait for a person.
        """
        path = Path(name)
        if path not in self.locked_keys:
            self.wanted_keys.append(path)

    async def _answer(self, prompt: str, *, secret: bool) -> str | None:
        """A remembered answer at first, then the user's, until they give up or have had their tries."""
        self.interactive = True
        if self.declined or self.wanted_keys:
            return None
        about = (self._route.address, prompt)
        with self.patience.asking():
            async with self._secrets.turn(about):
                known = self._secrets.answers.get(about)
                if secret and known is not None and known not in self._given:
                    self._given.add(known)
                    return known
                self._secrets.answers.pop(about, None)
                self._asked += 1
                if self._asked > TRIES:
                    return None
                answer = await self._prompts.password(self._host, prompt)
                if answer is None:
                    self.declined = True
                elif secret:
                    self._given.add(answer)
                    self._secrets.answers[about] = answer
                return answer
