"""The pre-flight: ask hosts for their facts, measure clocks and the network between them, and judge it all.

`check` is the whole of it. `for_launch` is what a launch needs besides what it has found out already: it
asks no interpreter and measures no network a second time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent import wire

from . import check_facts, clocks, findings_gpu, findings_group, findings_limits, network
from .clocks import PINGS
from .compare import Plan
from .errors import EncampError, HostError
from .findings import BLOCKER, LEVELS, WARNING, Finding, Subject, Wanted
from .matrix import Matrix
from .parallel import Round, everywhere
from .session import Session

CHECK_SECONDS = 150.0
"""How long a host may take: its Pythons are asked for torch, which may be slow the first time."""

Progress = Callable[[str], None]
"""Is told in a few words what takes its time now."""


@dataclass(frozen=True)
class Report:
    """What a check has found. `at` is our wall clock; `silent` are the hosts that could not be asked."""

    names: tuple[str, ...]
    subjects: dict[str, Subject]
    silent: dict[str, EncampError]
    matrix: Matrix | None
    findings: tuple[Finding, ...]
    """Blockers first, and within a level in the order of hosts and rules."""
    at: float

    @property
    def blockers(self) -> tuple[Finding, ...]:
        """What will go wrong."""
        return tuple(finding for finding in self.findings if finding.level == BLOCKER)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What may go wrong."""
        return tuple(finding for finding in self.findings if finding.level == WARNING)

    def of(self, host: str) -> tuple[Finding, ...]:
        """Those about one host; those about several together for an empty name."""
        return tuple(finding for finding in self.findings if finding.host == host)

    @property
    def unreachable(self) -> bool:
        """Whether a host could not be reached at all."""
        return any(isinstance(error, HostError) for error in self.silent.values())

    def to_json(self) -> dict[str, Any]:
        """The shape of `encamp check --json`: fields may be added, none is removed."""
        return {
            "time": self.at,
            "hosts": [self._host_json(name) for name in self.names],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "matrix": _matrix_json(self.matrix) if self.matrix is not None else None,
            "blockers": len(self.blockers),
            "warnings": len(self.warnings),
        }

    def _host_json(self, name: str) -> dict[str, Any]:
        error, subject = self.silent.get(name), self.subjects.get(name)
        return {
            "name": name,
            "error": None if error is None else {"message": error.message, "hint": error.hint},
            "clock": None if subject is None or subject.clock is None else dataclasses.asdict(subject.clock),
            "facts": None if subject is None else dataclasses.asdict(subject.facts),
        }


async def check(
    sessions: Sequence[Session],
    *,
    throughput: bool = True,
    wanted: Wanted | None = None,
    progress: Progress = lambda _: None,
) -> Report:
    """Check hosts, alone and together. A host that cannot be asked is a finding, not an error."""
    progress("asking " + ("the host" if len(sessions) == 1 else f"{len(sessions)} hosts"))
    asked = await everywhere(sessions, lambda session: _ask(session, wanted or Wanted()))
    matrix, failed = None, dict(asked.failed)
    there = [session for session in sessions if session.name in asked.done]
    if len(there) > 1:
        progress("measuring the network between them")
        try:
            matrix = await network.measure(there, throughput=throughput)
        except EncampError as error:
            failed[""] = error
    return judge([session.name for session in sessions], asked.done, failed, matrix)


async def for_launch(
    sessions: Sequence[Session],
    wanted: Wanted,
    plans: Mapping[str, Plan],
    matrix: Matrix | None = None,
    asked: Round[Subject] | None = None,
) -> Report:
    """What speaks against a launch, with what it knows already: nothing is asked or measured twice.

    `plans` are by the hosts' names. Takes one round trip and some milliseconds, and none when what `ask` has
    returned is given.
    """
    asked = asked or await ask(sessions)
    subjects = {
        name: dataclasses.replace(subject, wanted=wanted, plan=plans.get(name))
        for name, subject in asked.done.items()
    }
    return judge([session.name for session in sessions], subjects, asked.failed, matrix)


async def ask(sessions: Sequence[Session]) -> Round[Subject]:
    """Ask what a launch needs besides its plans, for `for_launch`. May be done while plans are made."""
    return await everywhere(sessions, lambda session: _ask(session, Wanted(), pythons=False, pings=1))


def judge(
    names: Sequence[str],
    subjects: Mapping[str, Subject],
    failed: Mapping[str, EncampError],
    matrix: Matrix | None,
) -> Report:
    """The report of what has been gathered. What failed for no host in particular has an empty name."""
    found = [
        Finding(name, "connection" if name else "network", BLOCKER, _line(error.message), _line(error.hint))
        for name, error in failed.items()
    ]
    for subject in subjects.values():
        found += [*findings_gpu.look(subject), *findings_limits.look(subject)]
    found += findings_group.look(list(subjects.values()), matrix)
    order = [*names, ""]
    found.sort(key=lambda finding: (LEVELS.index(finding.level), order.index(finding.host)))
    silent = {name: error for name, error in failed.items() if name}
    return Report(tuple(names), dict(subjects), silent, matrix, tuple(found), time.time())


def _line(text: str) -> str:
    return " ".join(text.split())


async def _ask(session: Session, wanted: Wanted, *, pythons: bool = True, pings: int = PINGS) -> Subject:
    clock = asyncio.ensure_future(clocks.against_ours(session, pings))
    try:
        reply = await session.request("check", {"pythons": pythons}, timeout=CHECK_SECONDS)
        facts = check_facts.read(reply)
    except wire.WireError as error:
        raise HostError(f"{session.name} answers a check in a way that makes no sense: {error}.") from error
    finally:
        await asyncio.wait([clock])
    hello = session.view.hello
    return Subject(session.name, facts, clock.result(), wanted, host_id=hello.host_id if hello else "")


def _matrix_json(matrix: Matrix) -> dict[str, Any]:
    return {
        "probes": [dataclasses.asdict(probe) for probe in matrix.probes],
        "pairs": [
            {
                "from": source.name,
                "to": target.name,
                "ok": way is not None and way.ok,
                "address": way.address if way else None,
                "interface": way.interface if way else None,
                "rtt_ms": way.rtt_ms if way else None,
                "mbit": way.mbit if way else None,
                "error": way.error if way else "it has no address to try",
            }
            for source in matrix.hosts
            for target in matrix.hosts
            if source is not target
            for way in [findings_group.best(matrix, source.name, target.name)]
        ],
    }
