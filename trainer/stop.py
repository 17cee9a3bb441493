"""Being asked to stop: SIGTERM and SIGINT become a flag that the loop looks at, once a step."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Whether somebody asked this process to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal = ""

    def __bool__(self) -> bool:
        return bool(self.signal)

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT. A second SIGINT interrupts at once."""
        signal.signal(signal.SIGTERM, self._heard)
        signal.signal(signal.SIGINT, self._heard)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
