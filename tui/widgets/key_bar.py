"""The last line of a screen: the few keys that matter there. A click on one presses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual import events
from textual.binding import Binding

from .lines import Lines
from .toned import Piece, cells

WORDS = {
    "escape": "esc",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "page up",
    "pagedown": "page down",
}


def key_words(binding: Binding, *, alone: bool = False) -> str:
    """A binding's key as it is written for people: `ctrl-q`, `esc`, `/`.

    Where its display stands for two keys, `alone` is for the one that is its own.
    """
    if binding.key_display and not (alone and " " in binding.key_display):
        return binding.key_display
    *modifiers, key = binding.key.split("+")
    return "-".join([*modifiers, WORDS.get(key, key)])


GAP = 3
"""Cells between two keys."""


class KeyBar(Lines):
    """Shows those of the bindings named by `ids` that are active now, in that order."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; }
    """

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__()
        self.ids = ids
        self._keys: list[tuple[str, str, str]] = []

    def on_mount(self) -> None:
        """Follow what the focus and the state of things make possible."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _screen: self.call_later(self.relist))
        self.relist()

    def relist(self) -> None:
        """Show the keys that are active now."""
        active: dict[str, Binding] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if enabled and binding.id:
                active.setdefault(binding.id, binding)
        shown = [active[name] for name in self.ids if name in active]
        self._keys = [(binding.key, key_words(binding), f" {binding.description}") for binding in shown]
        self.show([[(key + words, "") for _, key, words in self._keys]])

    def _fitting(self) -> Iterator[tuple[int, str, str, str]]:
        """(x, key, its name, what it does) of the keys that fit; those that do not are left to the help."""
        x = 1
        lengths = [cells(key + words) for _, key, words in self._keys]
        for index, (key, name, words) in enumerate(self._keys):
            # The last one leads to all the others, so there is always room for it.
            reserved = 0 if index == len(self._keys) - 1 else GAP + lengths[-1]
            if x + lengths[index] + reserved < self.size.width:
                yield x, key, name, words
                x += lengths[index] + GAP

    def line_at(self, y: int) -> Sequence[Piece]:
        """The keys that fit into the width."""
        pieces: list[Piece] = []
        for _, _, name, words in self._fitting():
            pieces += [(" " * (GAP if pieces else 1), ""), (name, "key"), (words, "quiet")]
        return pieces if y == 0 else ()

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked."""
        for x, key, name, words in self._fitting():
            if x <= event.x < x + cells(name + words):
                self.app.simulate_key(key)
                return
