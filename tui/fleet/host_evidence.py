"""What is believed of the evidence that a host sends: only what is about its own ranks, in plain text.

A host may be anybody's machine. It cannot speak for the ranks of another one, and nothing that it says can
move a terminal's cursor or fill its screen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from agent import wire
from agent.diagnosis import Diagnosis
from agent.diagnosis.evidence import Evidence, Host, Rank

from .sanitize import printable

MAX_CHARACTERS = 2000
"""Of one text that a host sends, such as the name of a file or of a function."""

MAX_LINES_CHARACTERS = 16_000
"""Of one that has lines: a message or a traceback."""

MAX_SOCKETS = 64

WITH_LINES = ("error_message", "traceback")

T = TypeVar("T")


def read(
    reply: Mapping[str, Any], run: str, attempt: int, host: str, own: range, offset: float
) -> tuple[Evidence, Diagnosis | None, list[str]]:
    """The agent's answer to `evidence`: what is believed of it, its alarm, and what is not, in words.

    `host` is what it is called here, `own` are its ranks, `offset` is how many seconds its clock is ahead of
    ours. Raises WireError when the answer is none, or about something else.
    """
    found = wire.from_json(Evidence, reply.get("evidence"), "evidence")
    alarm = reply.get("alarm")
    called = None if alarm is None else cleaned(wire.from_json(Diagnosis, alarm, "alarm"))
    if (found.run, found.attempt) != (run, attempt):
        raise wire.WireError(f"evidence is about attempt {found.attempt} of {found.run[:80]!r}")
    ranks: dict[int, Rank] = {}
    for rank in found.ranks:
        if rank.rank in own and rank.state in wire.RANK_STATES:
            ranks.setdefault(rank.rank, dataclasses.replace(cleaned(rank), host=host))
    ignored = len(found.ranks) - len(ranks)
    notes = [f"{host} spoke of {ignored} ranks that are not its own: ignored"] if ignored else []
    told = found.hosts[0] if found.hosts else Host("", True)
    believed = Host(
        host,
        True,
        memory_limit_bytes=told.memory_limit_bytes,
        oom_kills=max(0, told.oom_kills),
        clock_offset=offset,
        stuck_sockets=tuple(map(_line, told.stuck_sockets[:MAX_SOCKETS])),
        nccl_ras=_lines(told.nccl_ras),
    )
    kept = tuple(ranks[number] for number in sorted(ranks))
    return dataclasses.replace(found, ranks=kept, hosts=(believed,)), called, notes


def cleaned(value: T) -> T:
    """A dataclass in which every text is printable and of bounded length."""
    assert dataclasses.is_dataclass(value) and not isinstance(value, type)
    changed = {}
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = _cleaned(before, lines=field.name in WITH_LINES)
        if after is not before:
            changed[field.name] = after
    return dataclasses.replace(value, **changed) if changed else value


def _cleaned(value: object, *, lines: bool = False) -> object:
    if isinstance(value, str):
        return _lines(value) if lines else _line(value)
    if isinstance(value, tuple):
        return tuple(map(_cleaned, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return cleaned(value)
    return value


def _line(text: str) -> str:
    return printable(text[:MAX_CHARACTERS])


def _lines(text: str) -> str:
    return "\n".join(map(printable, text[-MAX_LINES_CHARACTERS:].split("\n")))
