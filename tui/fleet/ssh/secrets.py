"""What the user typed or unlocked since this process began: in memory, for reconnects, and nowhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh

from ..hosts import Host
from ..prompts import Prompts

TRIES = 3
"""How often the user may mistype."""


class Secrets:
    """Answers and opened keys. One question at a time is asked about one thing."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], str] = {}
        """Answers to a host's prompts, by the host's address and the prompt."""
        self.keys: dict[Path, asyncssh.SSHKey] = {}
        """Private keys that had a passphrase, opened."""
        self._turns: dict[object, asyncio.Lock] = {}

    def turn(self, subject: object) -> asyncio.Lock:
        """Held while the user is asked about `subject`, so that forty connections ask once."""
        return self._turns.setdefault(subject, asyncio.Lock())

    async def unlock(self, path: Path, host: Host, prompts: Prompts) -> bool:
        """Ask for the passphrase of the key at `path`, which `host` wants; False when it stays locked."""
        async with self.turn(path):
            if path in self.keys:
                return True
            for _ in range(TRIES):
                answer = await prompts.passphrase(host, str(path))
                if answer is None:
                    return False
                try:
                    self.keys[path] = await asyncio.to_thread(asyncssh.read_private_key, path, answer)
                    return True
                except (OSError, ValueError):
                    continue
            return False
