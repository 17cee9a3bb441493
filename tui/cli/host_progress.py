"""What is being done on each host, on stderr: a line for each step, or on a terminal one that changes."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType

from . import output

LASTING = ("warning: ", "blocker: ", "cannot be asked", "not stopped", "interrupted")
"""What begins so is still to be read when the next step has begun."""


class HostProgress:
    """Told by `show` of each step. A context manager: at its end the line that changes goes away.

    With `quiet` it says nothing. When the body fails, or with `keep`, the last step of each host is left.
    """

    def __init__(self, *, quiet: bool = False, keep: bool = False) -> None:
        self._quiet = quiet
        self._keep = keep
        self._terminal = sys.stderr.isatty()
        self._stages: dict[str, str] = {}
        self._drawn = 0

    def __enter__(self) -> HostProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._drawn:
            return
        self._erase()
        if self._keep or error is not None:
            for host, stage in self._stages.items():
                output.note(output.clean(f"{host}: {stage}"))

    def show(self, host: str, stage: str) -> None:
        """Say what is done on `host` now."""
        if self._quiet or self._stages.get(host) == stage:
            return
        if not self._terminal or stage.startswith(LASTING):
            self._erase()
            output.note(output.clean(f"{host}: {stage}"))
        else:
            self._stages[host] = stage
        if self._terminal:
            self._draw()

    def _draw(self) -> None:
        text = output.clean("   ".join(f"{host}: {stage}" for host, stage in self._stages.items()))
        text = text.replace("\n", " ")[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + text.ljust(self._drawn))
        sys.stderr.flush()
        self._drawn = len(text)

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
            self._drawn = 0
