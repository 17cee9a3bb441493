"""What a rank tells about itself: JSON lines for the agent, and lines on stdout for people.

The file is `$ENCAMP_RANK_DIR/progress.jsonl`, one object a line. Under encamp every rank has a log of its own
and says everything; under a plain launcher all ranks share one terminal, and only the first speaks.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from io import FileIO
from pathlib import Path
from typing import TextIO

from .member import Member

Value = bool | int | float | str | None


class Progress:
    """The voice of one rank."""

    def __init__(self, member: Member) -> None:
        folder = os.environ.get("ENCAMP_RANK_DIR")
        self.speaks = member.first or bool(folder)
        self._file: FileIO | None = None
        if folder:
            try:
                # Unbuffered: each record reaches the file at once and in one write.
                self._file = (Path(folder) / "progress.jsonl").open("ab", buffering=0)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file. Nothing is recorded from then on."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def say(self, text: str) -> None:
        """Print a line for people."""
        if self.speaks:
            _print(sys.stdout, text)

    def record(self, phase: str, step: int, **values: Value) -> None:
        """Write one record. `phase` is init, compile, train, eval or save; `step` the last that is done."""
        if self._file is None:
            return
        fields = {"time": time.time(), "step": step, "phase": phase} | {
            key: plain(value) for key, value in values.items() if value is not None
        }
        try:
            self._file.write(json.dumps(fields, allow_nan=False).encode() + b"\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # A full disk costs the graphs, not the training.
        self.close()
        _print(sys.stderr, f"no more progress is recorded: {error}")


def _print(stream: TextIO, text: str) -> None:
    """Print a line. One for which the disk has no room is lost: logs too are not worth the training."""
    try:
        # In one piece: on a terminal that ranks share, a line end written apart lands in another's line.
        stream.write(text + "\n")
        stream.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def plain(value: Value) -> Value:
    """`value` as JSON can hold it: NaN and infinity become `"nan"`, `"inf"` and `"-inf"`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
