"""What is settled before anything is begun: whether hosts fit together, who reaches whom, what is in the way.

All hosts are asked at once: what they would start, what they are like, and whom they reach. Nothing is
written on any of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent import wire

from . import compare, network, placement, preflight
from .bringup import again
from .compare import Plan
from .errors import EncampError
from .findings import Finding, Subject, Wanted
from .parallel import Progress, Round, everywhere
from .placement import Rendezvous
from .runs import LAUNCH_SECONDS, read_answer
from .session import Session

if TYPE_CHECKING:
    from profiles.schema import NetworkSection

    from .matrix import Matrix

MANY_HOSTS = (1, 1)
"""The protocol version from which on an agent knows of runs on several hosts."""


@dataclass(frozen=True)
class Wish:
    """What is to be arranged for. `restarting`: the run itself may still hold the GPUs."""

    spec: wire.LaunchSpec
    attempt: int = 1
    restarting: bool = False
    forced: str = ""
    """Why to go on in spite of a blocker; then GPUs that another run holds are taken as well."""
    resume_step: int | None = None
    """The checkpoint to go back to; None is the newest, 0 none."""


@dataclass(frozen=True)
class Arrangement:
    """The hosts in the order of their node ranks, and where they meet."""

    sessions: tuple[Session, ...]
    nodes: tuple[wire.Node, ...]
    rendezvous: Rendezvous


class Blocked(EncampError):
    """The pre-flight found what will not work. `findings` are its blockers."""

    code = "blocked"

    def __init__(self, findings: Sequence[Finding]) -> None:
        lines = [f"{finding.host}: {finding.text}" if finding.host else finding.text for finding in findings]
        fixes = dict.fromkeys(finding.fix for finding in findings if finding.fix)
        super().__init__("\n".join(lines), "\n  ".join([*fixes, "To start all the same: --force REASON"]))
        self.findings = tuple(findings)


async def arrange(
    sessions: Sequence[Session], wish: Wish, settings: NetworkSection, progress: Progress
) -> Arrangement:
    """Ask several hosts and decide.

    Raises HostsFailed, HostsDiffer, HostsApart, Blocked, and UsageError for settings that do not fit.
    """
    check_agents(sessions)
    for session in sessions:
        progress(session.name, "checking")
    measuring = network.measure(
        sessions,
        interface=settings.interface,
        rendezvous_host=settings.rendezvous_host,
        rendezvous_port=settings.rendezvous_port,
    )
    plans, asked, matrix = await _all(plan(sessions, wish), preflight.ask(sessions), measuring)
    check_alike(sessions, plans)
    nodes = placement.choose(matrix, rendezvous_host=settings.rendezvous_host)
    lead = nodes[0].name
    meeting = placement.rendezvous(
        matrix,
        nodes[0],
        plans[lead].port,
        port=settings.rendezvous_port,
        port_may_be_held=wish.restarting,
    )
    await check(sessions, wish, plans, matrix, progress, asked)
    by_name = {session.name: session for session in sessions}
    return Arrangement(tuple(by_name[node.name] for node in nodes), tuple(nodes), meeting)


async def _all(
    plans: Awaitable[dict[str, Plan]], facts: Awaitable[Round[Subject]], matrix: Awaitable[Matrix]
) -> tuple[dict[str, Plan], Round[Subject], Matrix]:
    """Wait for all, also when one fails: what hosts would start is said before how they reach each other."""
    planned, asked, measured = await asyncio.gather(plans, facts, matrix, return_exceptions=True)
    if isinstance(planned, BaseException):
        raise planned
    if isinstance(asked, BaseException):
        raise asked
    if isinstance(measured, BaseException):
        raise measured
    return planned, asked, measured


async def plan(sessions: Sequence[Session], wish: Wish) -> dict[str, Plan]:
    """What each host would start, as far as that can be told before it has the run's files and packages.

    Raises HostsFailed.
    """
    params = {
        "spec": wire.to_json(_without_files(wish.spec)),
        "attempt": wish.attempt,
        "gpus_may_be_held": wish.restarting or bool(wish.forced),
    }

    async def ask(session: Session) -> Plan:
        return read_answer(Plan, await again(session, "plan", params, LAUNCH_SECONDS))

    return (await everywhere(sessions, ask)).results()


async def check(
    sessions: Sequence[Session],
    wish: Wish,
    plans: Mapping[str, Plan],
    matrix: Matrix | None,
    progress: Progress,
    asked: Round[Subject] | None = None,
) -> None:
    """The pre-flight; `asked` is what is known for it already.

    Raises Blocked unless the wish is forced; warnings are told to `progress`.
    """
    spec = wish.spec
    wanted = Wanted(spec.nproc_per_node, spec.python, spec.run if wish.restarting else "")
    report = await preflight.for_launch(sessions, wanted, plans, matrix, asked)
    if report.blockers and not wish.forced:
        raise Blocked(report.blockers)
    for finding in (*report.blockers, *report.warnings):
        progress(finding.host or "all hosts", f"{finding.level}: {finding.text}")


def check_agents(sessions: Sequence[Session]) -> None:
    """Raise UsageError when two names mean one machine, EncampError when an agent is too old."""
    placement.refuse_twins((session.name, session.view.host_id) for session in sessions)
    for session in sessions:
        hello = session.view.hello
        if hello and (hello.protocol_major, hello.protocol_minor) < MANY_HOSTS:
            raise EncampError(
                f"The agent on {session.name} (encamp {hello.version}) is too old for runs on several hosts.",
                "Another encamp keeps it there: use the same version wherever you look at this host from.",
            )


def check_alike(sessions: Sequence[Session], plans: Mapping[str, Plan]) -> None:
    """Raise HostsDiffer unless the hosts can carry one run."""
    samples = {session.name: session.view.sample for session in sessions}
    compare.check(plans, {name: len(sample.gpu.gpus) if sample else None for name, sample in samples.items()})


def _without_files(spec: wire.LaunchSpec) -> wire.LaunchSpec:
    """The same as far as it can be asked about before the host has the project and the trainer.

    Packages are asked for: a host's Python may lack what they bring.
    """
    bare = dataclasses.replace(spec, code=())
    if spec.project is None:
        return bare
    # A script is looked for at once, a module when it runs; the working directory comes with the project.
    return dataclasses.replace(bare, project=None, cwd="", target_kind="module", target="project")
