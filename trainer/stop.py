"""Being asked to stop: SIGTERM and SIGINT become a flag that the loop looks at, once a step.

Only while the first step is compiled, which can take longer than a launcher waits, they end it at once: no
step is lost by that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StoppedAtOnce(BaseException):
    """Somebody asked to stop while nothing can be lost. No `Exception`: compilers go on after those."""


class StopRequest:
    """Whether somebody asked this process to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal = ""
        self._at_once = False

    def __bool__(self) -> bool:
        return bool(self.signal)

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT. A second SIGINT interrupts at once."""
        signal.signal(signal.SIGTERM, self._heard)
        signal.signal(signal.SIGINT, self._heard)

    @contextmanager
    def at_once(self, wanted: bool) -> Iterator[None]:
        """While this is open, and `wanted`, a request raises StoppedAtOnce; also one that came before."""
        self._at_once = wanted
        try:
            self._leave()
            yield
        finally:
            self._at_once = False

    def _leave(self) -> None:
        if self._at_once and self.signal:
            self._at_once = False
            raise StoppedAtOnce

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._leave()
