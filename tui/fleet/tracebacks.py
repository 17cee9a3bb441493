"""Tracebacks of ranks as people need them: without launchers' frames, and each only once.

What is taken out are the frames of encamp's shim, of runpy and of torchrun's `@record`, which say the same in
every job. The frames of the user's own code can be told from those of packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent.diagnosis.evidence import Rank
from agent.diagnosis.places import OTHERS

BOILERPLATE = re.compile(
    r"/attempts/\d+/rank\.py\Z|\A<frozen runpy>\Z|/runpy\.py\Z|/torch/distributed/(elastic/|run\.py\Z|launch)"
)
FRAME = re.compile(r'  File "(.{1,4096})", line (\d{1,9}), in (.{1,500})\Z')


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a traceback; `user_code` is None for what belongs to no frame."""

    text: str
    user_code: bool | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """How ranks failed in one and the same way, the first of them in front."""

    ranks: tuple[Rank, ...]
    lines: tuple[Line, ...]


def lines(traceback: str) -> list[Line]:
    """The lines of a traceback as Python prints it, without boilerplate."""
    kept: list[Line] = []
    frame: bool | None = None
    dropped = False
    for text in traceback.rstrip().split("\n"):
        found = FRAME.match(text)
        if found is not None:
            dropped = BOILERPLATE.search(found[1]) is not None
            frame = OTHERS.search(found[1]) is None
        elif not text.startswith("    "):  # the source of a frame and marks below it are indented
            dropped, frame = False, None
        if not dropped:
            kept.append(Line(text, frame))
    return kept


def folded(ranks: Iterable[Rank]) -> list[Failure]:
    """The failures of `ranks` in their order; those from the same place, of the same kind, are one."""
    groups: dict[tuple[str, ...], list[Rank]] = {}
    shown: dict[tuple[str, ...], tuple[Line, ...]] = {}
    for rank in ranks:
        found = tuple(lines(rank.traceback)) if rank.traceback else ()
        frames = tuple(line.text for line in found if line.user_code is not None)
        key = (rank.error_type, *frames) if found else (f"code {rank.exit_code}", rank.error_type)
        groups.setdefault(key, []).append(rank)
        shown.setdefault(key, found)
    return [Failure(tuple(same), shown[key]) for key, same in groups.items()]
