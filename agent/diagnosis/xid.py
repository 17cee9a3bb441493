"""What an XID means: the number under which NVIDIA's driver reports that something went wrong with a GPU.

Words and what to do are after NVIDIA's catalogue, docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

PROGRAM, PASSING, FATAL = "program", "passing", "fatal"
"""Whose it is: the program's own mistake; the GPU's, and over with a restart; the GPU's, and it stays."""

_BAD_ACCESS = "a kernel used memory that is not its own, most often a mistake of the program"

XIDS: Dict[int, Tuple[str, str]] = {
    13: (PROGRAM, "a kernel failed, most often by an index out of range in the program"),
    31: (PROGRAM, _BAD_ACCESS),
    43: (PROGRAM, "the driver ended the program's work after an error in it"),
    45: (PROGRAM, "work was taken off the GPU, as after the end of a program"),
    46: (FATAL, "the GPU has stopped processing"),
    48: (FATAL, "the GPU's memory has an error that cannot be corrected"),
    61: (FATAL, "the GPU's own controller has halted"),
    62: (FATAL, "the GPU's own controller has halted"),
    63: (FATAL, "bad memory of the GPU is to be replaced by spare one at its reset"),
    64: (FATAL, "bad memory of the GPU could not be replaced by spare one"),
    68: (PROGRAM, "the GPU's video unit failed"),
    69: (PROGRAM, "the GPU was given commands that it does not know"),
    74: (FATAL, "an NVLink of the GPU has failed"),
    79: (FATAL, "the GPU has fallen off the bus"),
    92: (PASSING, "the GPU's memory has many errors that could be corrected"),
    94: (PASSING, "a memory error of the GPU has ended the one program that it hit"),
    95: (FATAL, "a memory error of the GPU may have hit all programs on it"),
    109: (PROGRAM, "a kernel did not let go of the GPU in time"),
    119: (FATAL, "the GPU's system processor (GSP) does not answer"),
    120: (FATAL, "the GPU's system processor (GSP) has failed"),
    140: (FATAL, "the GPU's memory has an error that was not recovered from"),
    149: (FATAL, "an NVLink of the GPU has failed"),
}
"""Number -> whose it is, and what has happened."""

CONSEQUENCE = 45
"""Comes with the end of any program that used the GPU, and says nothing of why."""


def words(number: int) -> str:
    """`XID 79: the GPU has fallen off the bus`; of one that is not in the table the number alone."""
    return f"XID {number}: {XIDS[number][1]}" if number in XIDS else f"XID {number}"


def is_fatal(number: int) -> bool:
    """Whether no program should be started on that GPU before it is reset, or its host rebooted."""
    return number in XIDS and XIDS[number][0] == FATAL


def is_hardware(number: int) -> bool:
    """Whether it is known not to be the program's own mistake."""
    return number in XIDS and XIDS[number][0] != PROGRAM


def worst(seen: Sequence[Tuple[float, int]]) -> Optional[Tuple[float, int]]:
    """Of times and numbers, oldest first, the one to tell: a fatal one before others, then the newest."""
    return max(seen, key=lambda xid: (_weight(xid[1]), xid[0]), default=None)


def _weight(number: int) -> int:
    return is_fatal(number) + is_hardware(number) - (number == CONSEQUENCE)
