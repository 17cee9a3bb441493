"""Which Pythons a host has and what is in them, asked for one question: what could be trained there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .check_facts import Interpreter
from .runs import read_answer
from .session import Session

ASK_SECONDS = 90.0
"""How long the answer may take: the first time each Python imports torch. The host remembers it."""


@dataclass(frozen=True)
class Means:
    """What a host has for training. `interpreters` is None when it does not know in time."""

    gpus: int
    cores: int
    interpreters: Optional[tuple[Interpreter, ...]] = None  # noqa: UP045 (read at run time by wire.from_json)


async def ask(session: Session) -> Means:
    """Ask a host what it has. Raises RequestRefused, HostError."""
    return read_answer(Means, await session.request("probe", {}, timeout=ASK_SECONDS))
