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
class _Answer:
    interpreters: Optional[tuple[Interpreter, ...]] = None  # noqa: UP045 (read at run time by wire.from_json)


async def ask(session: Session) -> tuple[Interpreter, ...] | None:
    """The Pythons of a host; None when it does not know in time. Raises RequestRefused, HostError."""
    reply = await session.request("probe", {}, timeout=ASK_SECONDS)
    return read_answer(_Answer, reply).interpreters
