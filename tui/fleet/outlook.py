"""What a launch would start, found out without sending a project or building an environment for it.

A dry run on the command line brings the hosts everything and is exact; this is for looking while choosing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import arrange, runs
from .arrange import Wish
from .bringup import Order, dry_run
from .job import Job
from .parallel import Progress, everywhere
from .placement import Rendezvous
from .session import Session


@dataclass(frozen=True)
class Outlook:
    """The hosts in the order of their node ranks, and how many ranks each would start."""

    hosts: tuple[str, ...]
    nproc_per_node: int
    commands: dict[str, str]
    """By host, for a shell there; empty while that depends on what is still to be sent."""
    rendezvous: Rendezvous | None
    """Where they meet; None on one host."""

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.nproc_per_node * len(self.hosts)


async def look(
    sessions: Sequence[Session], job: Job, actor: str, *, forced: str = "", progress: Progress
) -> Outlook:
    """Ask the hosts. The trainer is sent, which is small; nothing starts.

    `forced` is why to go on in spite of blockers. Raises HostsFailed, HostsDiffer, HostsApart, Blocked,
    RequestRefused.
    """
    wish = Wish(job.spec, forced=forced)
    complete = job.project is None and job.spec.env_setup is None
    if len(sessions) == 1:
        return await _on_one(sessions[0], job, wish, actor, progress, complete=complete)
    arranged = await arrange.arrange(sessions, wish, job.network, progress)
    names = tuple(session.name for session in arranged.sessions)
    if not complete:
        plans = await arrange.plan(arranged.sessions, wish)
        return Outlook(names, plans[names[0]].nproc_per_node, {}, arranged.rendezvous)
    (await everywhere(arranged.sessions, lambda session: runs.upload_trainer(session, job.spec))).results()
    order = Order(job.spec, 1, arranged.nodes, arranged.rendezvous, actor, forced=forced)
    plans = await dry_run(arranged.sessions, order)
    commands = {name: plan.command_line for name, plan in plans.items()}
    return Outlook(names, plans[names[0]].nproc_per_node, commands, arranged.rendezvous)


async def _on_one(
    session: Session, job: Job, wish: Wish, actor: str, progress: Progress, *, complete: bool
) -> Outlook:
    arrange.check_agents([session])
    plans = await arrange.plan([session], wish)
    await arrange.check([session], wish, plans, None, progress)
    if not complete:
        return Outlook((session.name,), plans[session.name].nproc_per_node, {}, None)
    await runs.upload_trainer(session, job.spec)
    result = await runs.launch(session, job.spec, actor, dry_run=True, forced=wish.forced)
    return Outlook((session.name,), result.nproc_per_node, {session.name: result.command_line}, None)
