"""Choosing a strategy: a field that says what is chosen and whether the hosts can run it, and the whole list.

Neither knows hosts or profiles: both ask a function for the verdict, and look again when they are told to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from profiles import keys

from .. import formatting as fmt
from ..fleet.strategies import NO, STRATEGIES, UNKNOWN, WARNING, YES, Verdict
from ..formatting import Mark
from .columns import Column, line
from .table import Table
from .toned import Piece, Toned, length

Judge = Callable[[str], Verdict]
"""The verdict on a strategy by its name."""

AS_PROFILE = ""
"""Stands for the strategy that the profile names."""

IN_PROFILE = "as in the profile"

MARKS = {
    YES: Mark("●", "can run here", fmt.GOOD),
    WARNING: Mark("◐", "can run here", fmt.DEGRADED),
    NO: Mark("✕", "cannot run here", fmt.TROUBLE),
    UNKNOWN: Mark("?", "not known", fmt.NOT_KNOWN),
}


def verdict_words(name: str, verdict: Verdict) -> str:
    """The verdict on a strategy, and what helps, on one line."""
    mark, needs = MARKS[verdict.state], STRATEGIES[name].needs
    if verdict.state == YES:
        return f"{mark.glyph} {name} can run here" + (f"; it needs {fmt.listed(needs)}" if needs else "")
    return f"{mark.glyph} {name}: {verdict.text}"


class StrategyField(Toned, can_focus=True):
    """One line: the strategy that is chosen, and the verdict on it. Posts `Wanted` when it is to be changed.

    `profile` is what the profile says; empty while that is not known.
    """

    DEFAULT_CSS = """
    StrategyField { height: 1; width: 1fr; }
    StrategyField:focus { background-tint: $foreground 5%; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter,space,down,up", "open", "choose", show=False, id="strategy.open", tooltip="all of them"
        ),
    ]

    class Changed(Message):
        """Another strategy was chosen."""

    class Wanted(Message):
        """The list is wanted."""

    def __init__(self, judge: Judge, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._judge = judge
        self._value = AS_PROFILE
        self.profile = ""

    @property
    def value(self) -> str:
        """The strategy that is chosen here, or `AS_PROFILE`."""
        return self._value

    @value.setter
    def value(self, name: str) -> None:
        if name != self._value:
            self._value = name
            self.refresh()
            self.call_later(self._tell)  # a message bubbles only up to whoever has made it

    def _tell(self) -> None:
        self.post_message(self.Changed())

    @property
    def effective(self) -> str:
        """The strategy that a launch would have; empty while that is not known."""
        return self._value or self.profile

    @property
    def verdict(self) -> Verdict:
        """On the strategy that a launch would have."""
        return self._judge(self.effective) if self.effective in STRATEGIES else Verdict(UNKNOWN)

    def action_open(self) -> None:
        """Have the list shown."""
        self.post_message(self.Wanted())

    def on_click(self, event: events.Click) -> None:
        """The same."""
        event.stop()
        self.action_open()

    def on_focus(self) -> None:
        """It looks different with the focus."""
        self.refresh()

    def on_blur(self) -> None:
        """It looks different without the focus."""
        self.refresh()

    def get_content_height(self, _container: Size, _viewport: Size, _width: int) -> int:
        """One row."""
        return 1

    def render_line(self, _y: int) -> Strip:
        """What is chosen on the left, the verdict and an arrow on the right."""
        what = f"as the profile says: {self.profile}" if self.profile else "as the profile says"
        left: list[Piece] = [(self._value or what, "" if self._value else "quiet")]
        right: list[Piece] = [("▼ ", "quiet")]
        if self.effective:
            verdict = self.verdict
            mark = MARKS[verdict.state]
            word = verdict.why or mark.word if verdict.state == UNKNOWN else mark.word
            right = [(f"{mark.glyph} {word}", mark.tone), ("  ", ""), *right]
        space = max(1, self.size.width - length(left) - length(right))
        return self.strip([*left, (" " * space, ""), *right], self.size.width)


class StrategyList(Table[str]):
    """All strategies with one line each on when to choose it, and whether the hosts can run it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter,space", "open", "choose", show=False, id="strategies.choose", tooltip="choose this one"
        ),
    ]

    def __init__(self, judge: Judge, profile: str) -> None:
        super().__init__(id="strategies")
        self._judge = judge
        self._profile = profile

    def keys(self) -> Sequence[str]:
        """What the profile says comes first; without one there is no such row."""
        return [*([AS_PROFILE] if self._profile else []), *keys.STRATEGIES]

    def columns(self) -> Sequence[Column]:
        """Where the width is short, the glyph alone says whether it can run; the words stand below."""
        names = max(map(len, (IN_PROFILE, *keys.STRATEGIES)))
        when = max(len(STRATEGIES[name].when) for name in keys.STRATEGIES)
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("name", "STRATEGY", names, keep=19, gap=1),
            Column("when", "CHOOSE IT WHEN", when, keep=18),
            Column("here", "CAN RUN HERE", 16, keep=17, widest=80),
        ]

    def verdict(self, key: str) -> Verdict:
        """On a row's strategy."""
        return self._judge(key or self._profile)

    def signature(self, key: str) -> Hashable:
        """The verdict."""
        return self.verdict(key)

    def pieces(self, key: str) -> list[Piece]:
        """One strategy."""
        verdict = self.verdict(key)
        mark = MARKS[verdict.state]
        when = STRATEGIES[key].when if key else f"the profile says so: {self._profile}"
        here = "yes" if verdict.state == YES else verdict.text
        return line(
            self.slots,
            {
                "mark": (mark.glyph, mark.tone),
                "name": key or IN_PROFILE,
                "when": (when, "quiet"),
                "here": (here, "quiet" if verdict.state in (YES, UNKNOWN) else ""),
            },
        )
