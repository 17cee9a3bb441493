"""How a run stands, at the top of its screen: one sentence, what to press next, hosts that differ."""

from __future__ import annotations

from collections.abc import Sequence

from .. import facts as host_facts_of
from .. import formatting as fmt
from .. import run_facts, training_facts
from ..examining import Examination
from ..fleet.store import RunView
from .lines import Lines
from .toned import Piece, length

HostLine = tuple[str, fmt.Mark, str]

TALL = 32
"""Lines of a terminal on which there is room for more than what is needed."""

KEYS_THAT_CHANGE = ("C ", "r ", "S ")
"""How the keys are written that are not offered in read-only mode."""


class RunBanner(Lines):
    """The state of one run in a few lines; of one that stalls, who holds it up."""

    def __init__(self) -> None:
        super().__init__(id="banner")

    def tell(self, run: RunView, now: float, found: Examination, *, read_only: bool) -> None:
        """Say how `run` stands; `found` is what is known of it while it stalls."""
        screen = self.screen.size
        mark, when, what, keys = run_facts.state_sentence(run, now, found)
        stalled = mark.word == "stalled"
        if read_only:
            keys = "   ".join(key for key in keys.split("   ") if not key.startswith(KEYS_THAT_CHANGE))
        head = f" {mark.glyph} {mark.word} {when}".rstrip() + "   "
        indent = " " * len(head)
        width = max(20, screen.width - len(head) - 1)
        lines: list[list[Piece]] = []
        hosts = _host_lines(run, now, screen.height, examined=stalled and found.current(run, now) is not None)
        most = 2 if hosts and screen.height < TALL else 3
        tone = "" if mark.tone == fmt.GOOD else mark.tone if stalled else "strong"
        for index, text in enumerate(run_facts.wrapped(what, width, most) or [""]):
            lines.append([(head, mark.tone) if index == 0 else (indent, ""), (text, tone)])
        if stalled:
            lines += _what_next(keys, run_facts.asking(found, now), indent, width)
        elif keys and (not hosts or screen.height >= TALL):
            lines.append([(indent, ""), (keys, "quiet")])
        lines += hosts
        numbers = training_facts.numbers(run)
        if numbers and screen.height >= TALL:
            lines.append([(" train ", "quiet"), *_joined(numbers, screen.width - 8)])
        if run.info.code and screen.height >= TALL:
            lines.append([(" code  ", "quiet"), (run.info.code, "")])
        self.show(lines)


def _what_next(keys: str, asked: str, indent: str, width: int) -> list[list[Piece]]:
    """The keys of a run that stalls and how new all that is, on one line where it fits."""
    if len(keys) + 3 + len(asked) <= width:
        return [[(indent, ""), (keys, ""), (f"   {asked}", "quiet")]]
    said = run_facts.wrapped(asked, width, 2)
    return [[(indent, ""), (keys, "")], *([(indent, ""), (text, "quiet")] for text in said)]


def _host_lines(run: RunView, now: float, height: int, *, examined: bool) -> list[list[Piece]]:
    """A line a host where they do not all say the same; those in trouble first where not all fit."""
    said = run_facts.host_lines(run, now, examined=examined)
    if height < TALL:
        said = _together(said)
    most = max(3, height // 6)
    left_out = ""
    if len(said) > most:
        said.sort(key=lambda line: host_facts_of.severity(line[1]))
        left_out = f" and {len(said) - most + 1} more hosts"
        said = said[: most - 1]
    names = max((len(name) for name, _, _ in said), default=0)
    words = max((len(mark.word) for _, mark, _ in said), default=0)
    lines: list[list[Piece]] = [
        [
            (f"   {name:<{names}}  ", ""),
            (f"{mark.glyph} {mark.word:<{words}}", mark.tone),
            (f"   {more}", "quiet"),
        ]
        for name, mark, more in said
    ]
    return [*lines, [(f"  {left_out}", "quiet")]] if left_out else lines


def _joined(numbers: Sequence[tuple[str, str]], width: int) -> list[Piece]:
    """As many names and values, the first ones, as fit on a line."""
    pieces: list[Piece] = []
    for name, value in numbers:
        pair: list[Piece] = [(f"  {name} ", "quiet"), (f"{value} ", "")]
        if length([*pieces, *pair]) > width:
            break
        pieces += pair
    return pieces


def _together(lines: Sequence[HostLine]) -> list[HostLine]:
    """Hosts in the same state on one line, where there is little room; what the first one adds is kept."""
    found: dict[str, HostLine] = {}
    for name, mark, more in lines:
        same = found.get(mark.word)
        found[mark.word] = (name, mark, more) if same is None else (f"{same[0]} {name}", mark, same[2])
    return list(found.values())
