"""What is being done on each host, on stderr: a line for each step, or on a terminal one that changes."""

from __future__ import annotations

import shutil
import sys

from . import output


class HostProgress:
    """Told by `show` of each step. With `quiet` it says nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._stages: dict[str, str] = {}
        self._drawn = 0

    def show(self, host: str, stage: str) -> None:
        """Say what is done on `host` now."""
        if self._quiet or self._stages.get(host) == stage:
            return
        self._stages[host] = stage
        if not self._terminal:
            output.note(output.clean(f"{host}: {stage}"))
            return
        text = output.clean("   ".join(f"{name}: {what}" for name, what in self._stages.items()))
        text = text.replace("\n", " ")[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + text.ljust(self._drawn))
        sys.stderr.flush()
        self._drawn = len(text)

    def end(self) -> None:
        """Leave the last state of all hosts, one a line."""
        if not self._drawn:
            return
        sys.stderr.write("\r" + " " * self._drawn + "\r")
        sys.stderr.flush()
        self._drawn = 0
        for host, stage in self._stages.items():
            output.note(output.clean(f"{host}: {stage}"))
