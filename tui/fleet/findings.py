"""What a check finds: one line on what is good, doubtful or in the way of a launch, and one on what to do.

Here is what findings are and what they are about; the rules are in `findings_gpu.py`, `findings_limits.py`
and, for what concerns several hosts together, `findings_group.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .check_facts import Clock, Facts, Interpreter
from .compare import Plan

OK, WARNING, BLOCKER = "ok", "warning", "blocker"

LEVELS = (BLOCKER, WARNING, OK)
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `host` is empty when it concerns several together."""

    host: str
    check: str
    """What was looked at, in a word."""
    level: str
    text: str
    fix: str = ""
    """What to do about it; empty when there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a launch needs of each host. The defaults are those of a profile that says nothing."""

    nproc_per_node: int = 0
    """0 is one rank a GPU, or without GPUs one a core."""
    python: str = "auto"
    run: str = ""
    """The run that is to be started again: its own processes are in nobody's way."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One host that is judged. A `plan` knows better than the facts which Python starts how many ranks."""

    name: str
    facts: Facts
    clock: Clock | None = None
    wanted: Wanted = field(default_factory=Wanted)
    plan: Plan | None = None
    host_id: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks a launch would start here."""
        if self.plan is not None:
            return self.plan.nproc_per_node
        usable = int(self.facts.host.cpu.usable) if self.facts.host is not None else 0
        return self.wanted.nproc_per_node or len(self.facts.gpu.gpus) or max(2, usable)

    @property
    def python(self) -> Interpreter | None:
        """The Python that would start them; None where none is known that can."""
        if self.plan is not None:
            return Interpreter(self.plan.python, "", self.plan.torch, self.plan.cuda)
        for each in self.facts.interpreters or ():
            if each.torch is not None and self.wanted.python in ("auto", each.path):
                return each
        return None

    def ok(self, check: str, text: str) -> Finding:
        """Nothing to do."""
        return Finding(self.name, check, OK, text)

    def warning(self, check: str, text: str, fix: str) -> Finding:
        """It may go wrong."""
        return Finding(self.name, check, WARNING, text, fix)

    def blocker(self, check: str, text: str, fix: str) -> Finding:
        """It will go wrong."""
        return Finding(self.name, check, BLOCKER, text, fix)


def release(version: str) -> tuple[int, ...]:
    """Major and minor of a version: (2, 13) of 2.13.0+cpu; empty when it has none."""
    match = re.match(r"(\d{1,6})(?:\.(\d{1,6}))?", version)
    return tuple(int(part) for part in match.groups("0")) if match else ()
