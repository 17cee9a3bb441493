"""Makes a host's bytes harmless for a terminal: text, line ends, tabs and colours pass, nothing else."""

from __future__ import annotations

import codecs
import re

from ..fleet.sanitize import printable

_KEPT = re.compile(r"(\r?\n|\r|\t|\x1b\[[0-9;:]{0,64}m)")

_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,2048})?\Z")
"""An escape sequence whose end may be in the next bytes."""


class Harmless:
    """A filter for one stream, fed in pieces that may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """What of `data` may be shown. `final` also lets go of what was held back, and ends any colour."""
        text = self._rest + self._decoder.decode(data, final)
        unfinished = None if final else _UNFINISHED.search(text)
        self._rest = text[unfinished.start() :] if unfinished else ""
        if unfinished:
            text = text[: unfinished.start()]
        parts = _KEPT.split(text)
        parts[::2] = map(printable, parts[::2])
        return ("".join(parts) + ("\x1b[0m" if final else "")).encode()
