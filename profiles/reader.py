"""Takes checked values out of a profile's tables and collects everything that is wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import ABSENT, Fault
from .keys import did_you_mean, json_word, key_word
from .source import Table


class Reader:
    """One reading of one profile.

    `where` names the file, `given` what came from elsewhere (key -> where), and `dotted` all keys that a
    profile may have, for hints.
    """

    def __init__(self, where: str, given: Mapping[str, str], dotted: Iterable[str]) -> None:
        self.where = where
        self.faults: list[Fault] = []
        self._given = given
        self._dotted = tuple(dotted)

    def fault(self, key: str, value: object, allowed: str) -> None:
        """Note what is wrong with `key`."""
        self.faults.append(Fault(self._given.get(key, self.where), key, value, allowed))

    def section(self, table: Table, name: str) -> Table | None:
        """The table `name`, empty when it is absent; None, with a fault, when it is no table."""
        value = table.get(name, {})
        if isinstance(value, dict):
            return value
        self.fault(name, value, f"must be a table: a line [{name}] and its keys below")
        return None

    def take(self, table: Table, key: str, default: Any, problem: Callable[[object], str | None]) -> Any:
        """The checked value of the last part of `key`, or `default` when it is absent or wrong."""
        name = key.rpartition(".")[2]
        if name not in table:
            return default
        what = problem(table[name])
        if what is None:
            return table[name]
        self.fault(key, table[name], what)
        return default

    def unknown(self, section: str, table: Table, known: Iterable[str]) -> None:
        """Note every key of `table` that is not among `known`."""
        names = list(known)
        for name, value in table.items():
            if name in names:
                continue
            prefix = f"{section}." if section else ""
            elsewhere = [dotted for dotted in self._dotted if dotted.rpartition(".")[2] == name]
            hint = did_you_mean(name, names)
            if elsewhere:
                hint = f"; did you mean {json_word(elsewhere[0])}?"
            elif not hint:
                place = f"[{section}]" if section else "a profile"
                hint = f"; {place} may have {', '.join(names)}"
            shown = ABSENT if isinstance(value, dict) else value
            self.fault(prefix + key_word(name), shown, f"unknown key{hint}")
