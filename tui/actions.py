"""What is being done on hosts at the user's wish: it goes on whether or not somebody looks at it.

The app carries an `Action` out in the background; a dialog may show its stages meanwhile, and be left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field

from .fleet.errors import EncampError
from .fleet.parallel import HostsFailed, Progress

Work = Callable[[Progress], Coroutine[None, None, str]]
"""Does it, telling each host's stage, and returns a sentence on what came of it. Raises EncampError."""


@dataclass(eq=False)
class Action:
    """One action: where each host is with it, and how it ended."""

    title: str
    hosts: Sequence[str]
    stages: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """`time.monotonic()` of its end."""
    result: str = ""
    error: EncampError | None = None
    undone: str = "What had been begun was taken back."
    """What is so after it was called off."""
    watched: bool = False
    """A dialog shows it, so nobody else has to say how it ended."""
    _task: asyncio.Future[str] | None = None
    _called_off: bool = False

    def progress(self, host: str, stage: str) -> None:
        """Take note of what is done on a host now."""
        self.stages[host] = stage

    async def carry_out(self, work: Work) -> None:
        """Do it and keep how it ended."""
        self._task = asyncio.ensure_future(work(self.progress))
        try:
            self.result = await self._task
        except EncampError as error:
            self.error = error
        except asyncio.CancelledError:
            self.error = EncampError("It was called off.", self.undone)
            if not self._called_off:
                raise
        finally:
            self.ended = time.monotonic()

    def call_off(self) -> None:
        """Take it back; it ends when that is done."""
        if self._task is not None and not self._called_off:
            self._called_off = True
            self._task.cancel()

    def lines(self) -> Iterable[tuple[str, str, bool]]:
        """(host, where it is with this, whether it failed there), in the order of the hosts."""
        failures = self.error.failures if isinstance(self.error, HostsFailed) else {}
        for host in dict.fromkeys([*self.hosts, *self.stages]):
            failed = failures.get(host)
            yield (
                host,
                failed.message if failed is not None else self.stages.get(host, "waiting"),
                host in failures,
            )

    @property
    def complaint(self) -> str:
        """Why it failed, without what is said of single hosts."""
        if self.error is None or isinstance(self.error, HostsFailed):
            return "" if self.error is None else "It did not work on all hosts."
        return self.error.message
