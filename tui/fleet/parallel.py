"""One thing done on several hosts at once, and what is said when it did not work on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import EncampError, HostError
from .session import Session

T = TypeVar("T")

Progress = Callable[[str, str], None]
"""Is told a host's name and what is being done there, in a word or two."""


class HostsFailed(EncampError):
    """Something did not work on some hosts. `host` is the first of them, `code` its refusal's, if it was one.

    The exit code is that of an unreachable host when one could not be asked.
    """

    def __init__(self, failures: Mapping[str, EncampError]) -> None:
        lines = [f"{host}: {error.message}" for host, error in failures.items()]
        hints = dict.fromkeys(error.hint for error in failures.values() if error.hint)
        super().__init__("\n".join(lines), "\n  ".join(hints))
        self.failures = dict(failures)
        self.host, first = next(iter(failures.items()))
        self.code: str | None = getattr(first, "code", None)
        if any(isinstance(error, HostError) for error in failures.values()):
            self.exit_code = HostError.exit_code


@dataclass(frozen=True)
class Round(Generic[T]):
    """What came of it, by the hosts' names in the order in which they were given."""

    done: dict[str, T]
    failed: dict[str, EncampError]

    def results(self) -> dict[str, T]:
        """What every host has answered. Raises HostsFailed when not all did."""
        if self.failed:
            raise HostsFailed(self.failed)
        return self.done


async def everywhere(sessions: Iterable[Session], action: Callable[[Session], Awaitable[T]]) -> Round[T]:
    """Do `action` on all hosts at once and wait for all of them, also when one has failed.

    Cancelled, it cancels what has not ended. What is no EncampError is raised.
    """
    tasks = {session.name: asyncio.ensure_future(action(session)) for session in sessions}
    try:
        if tasks:
            await asyncio.wait(tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
        ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
    done: dict[str, T] = {}
    failed: dict[str, EncampError] = {}
    for name, outcome in zip(tasks, ended, strict=True):
        if isinstance(outcome, EncampError):
            failed[name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done[name] = outcome
    return Round(done, failed)
