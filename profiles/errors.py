"""What can be wrong with a profile: a `Fault` for each thing, and one `ProfileError` for all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 60
"""Characters of a bad value that a message repeats."""


class Absent:
    """The value of a key that is not there: `ABSENT` is the only one."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake. `key` is dotted, and empty when the whole file is meant; `allowed` says what would do."""

    file: str
    key: str
    value: object
    allowed: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        if self.value is not ABSENT:
            place += f" = {show(self.value)}"
        return f"{place}: {self.allowed}"


class ProfileError(ValueError):
    """A profile that cannot be used. `faults` holds everything found wrong with it, in the file's order."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def show(value: object) -> str:
    """`value` much as TOML writes it, on one line of bounded length, without control characters."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):  # an integer of thousands of digits, a table of tables
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
