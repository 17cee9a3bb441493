"""When a run is not restarted any more: restarts that bring nothing cost as much as those that help.

A pure class: it is told of each stall and each failure, and of each restart, and says what it thinks.
"""

from __future__ import annotations

from dataclasses import dataclass

FRUITLESS = 2
"""So many restarts in a row without any progress are enough."""

REPEATS = 2
"""So often the same may happen again, without a new checkpoint in between."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A stall or a failure, and how far the run had come."""

    fingerprint: str
    """What happened and where, without what differs from time to time; empty where that is not known."""
    step: int | None
    checkpoint: int | None
    """The step of the newest complete checkpoint."""


class Brake:
    """Remembers what the restarts of one run have brought."""

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.restarts = 0
        self._step = -1
        """The furthest step that any attempt has reached."""
        self._checkpoint = -1
        self._fingerprint = ""
        self._repeats = 0
        self._fruitless = 0
        self._restarted = False
        """Whether the last thing that happened was a restart of ours."""

    def consider(self, trouble: Trouble) -> str:
        """Take in what has happened now. Returns why the run should not be restarted; empty: it may be."""
        step = -1 if trouble.step is None else trouble.step
        saved = (-1 if trouble.checkpoint is None else trouble.checkpoint) > self._checkpoint
        if self._restarted:
            self._fruitless = 0 if saved or step > self._step else self._fruitless + 1
        same = bool(trouble.fingerprint) and trouble.fingerprint == self._fingerprint
        self._repeats = self._repeats + 1 if same and self._restarted and not saved else 0
        self._step = max(self._step, step)
        if saved and trouble.checkpoint is not None:
            self._checkpoint = trouble.checkpoint
        self._fingerprint = trouble.fingerprint
        self._restarted = False
        if self._repeats >= REPEATS:
            return f"the same has happened {self._repeats + 1} times: {trouble.fingerprint}"
        if self._fruitless >= FRUITLESS:
            return f"{self._fruitless} restarts in a row brought no new checkpoint and no new step"
        if self.restarts < self.max_restarts:
            return ""
        if not self.restarts:
            return "no restart is allowed"
        return f"it was restarted {'once' if self.restarts == 1 else f'{self.restarts} times'}, the limit"

    def restarted(self) -> None:
        """The run was restarted because of what was considered last."""
        self.restarts += 1
        self._restarted = True

    def somebody_else_acted(self) -> None:
        """A person has restarted the run: what comes of it says nothing about our restarts."""
        self._fruitless = self._repeats = 0
        self._restarted = False
