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
    """What a host has for training. `interpreters` is None when it does not know in time.

    `named` is the Python that was asked for by name; None where there is no such program.
    """

    gpus: int
    cores: int
    interpreters: Optional[tuple[Interpreter, ...]] = None  # noqa: UP045 (read at run time by wire.from_json)
    named: Optional[Interpreter] = None  # noqa: UP045


async def ask(session: Session, python: str = "auto") -> Means:
    """Ask a host what it has, and what is in the Python of a profile that names one.

    A relative path is not asked about: it is in a project that the host has yet to get.
    Raises RequestRefused, HostError.
    """
    known = python != "auto" and (python.startswith(("/", "~")) or "/" not in python)
    params = {"python": python} if known else {}
    return read_answer(Means, await session.request("probe", params, timeout=ASK_SECONDS))
