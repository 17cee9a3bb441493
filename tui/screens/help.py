"""The keys that work here, read off the bindings that are active, and the commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType

from ..commands import Command
from ..widgets.key_bar import WORDS, key_words
from ..widgets.lines import Lines
from ..widgets.toned import Piece
from .dialog import Dialog

GROUPS = {
    "table": "move",
    "fleet": "here",
    "runs": "here",
    "here": "here",
    "run": "here",
    "log": "log",
    "logs": "log",
    "screen": "everywhere",
    "app": "everywhere",
}
"""Heads of the groups, by the first part of a binding's id, in the order in which they are shown."""

WIDTH = 24
"""Cells of the first column."""

NAMED = frozenset(WORDS.values())
"""Keys that have a name or an arrow: they come behind the letters."""

ORDER = ("here", "log", "move", "everywhere")


class HelpScreen(Dialog[None]):
    """What can be done now."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,question_mark", "leave", "leave", show=False)]

    def __init__(
        self,
        bindings: Sequence[ActiveBinding],
        commands: Sequence[Command],
        first: Sequence[str] = (),
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__("keys that work here")
        said: list[list[Piece]] = []
        for typed, what in more:
            said += [[(what, "head")], [(typed, "key")], []]
        self.lines = [*said, *key_lines(bindings, first), [], *command_lines(commands)]

    def body(self) -> ComposeResult:
        """All lines; the dialog scrolls."""
        lines = Lines(id="keys")
        lines.show(self.lines)
        yield lines

    def on_mount(self) -> None:
        """Let the keys scroll the dialog."""
        self.query_one("#dialog").can_focus = True
        self.query_one("#dialog").focus()


def key_lines(bindings: Iterable[ActiveBinding], first: Sequence[str]) -> list[list[Piece]]:
    """One line an action: its keys, and what it does; the bindings whose ids are in `first` come first."""
    groups: dict[str, dict[str, tuple[list[str], str]]] = {}
    for active in bindings:
        binding = active.binding
        if not binding.id or binding.system or not active.enabled:
            continue
        group = GROUPS.get(binding.id.split(".")[0], "here")
        keys, _ = groups.setdefault(group, {}).setdefault(
            binding.id, ([], binding.tooltip or binding.description)
        )
        word = key_words(binding, alone=True)
        if word not in keys:
            keys.append(word)
    lines: list[list[Piece]] = []
    for group in ORDER:
        if group in groups:
            lines += [[], [(group, "head")]] if lines else [[(group, "head")]]
            found = groups[group]
            ids = [name for name in first if name in found] + [name for name in found if name not in first]
            for keys, text in (found[name] for name in ids):
                keys.sort(key=lambda word: word in NAMED or len(word) > 1)
                lines.append([(" ".join(keys).ljust(WIDTH), "key"), (text, "")])
    return lines


def command_lines(commands: Iterable[Command]) -> list[list[Piece]]:
    """One line a command."""
    lines: list[list[Piece]] = [[("commands", "head")]]
    for command in commands:
        lines.append([(f":{command.name} {command.usage}".ljust(WIDTH), "key"), (command.summary, "")])
    return lines
