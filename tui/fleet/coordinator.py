"""Launching a run on one host or several: everything is settled and sent first, and then it starts.

On several hosts it starts on all or on none, see `bringup`. On one it is a single request. Either way the
run's first moments are watched, and what was begun is stopped when the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent import wire

from . import arrange, code_sync, env_setup, launch_secrets, run_watch, runs
from .arrange import Arrangement, Wish
from .bringup import Bringup, Order, dry_run
from .compare import Plan
from .errors import EncampError
from .job import Job
from .parallel import Progress, everywhere
from .placement import Rendezvous
from .project import Project
from .runs import LaunchResult
from .session import Session


@dataclass(frozen=True)
class Launched:
    """What runs, or with a dry run would: hosts in the order of their node ranks, with what each executes."""

    run: str
    attempt: int
    nproc_per_node: int
    results: dict[str, LaunchResult]
    nodes: tuple[wire.Node, ...] = ()
    """Empty on one host."""
    rendezvous: Rendezvous | None = None
    """None on one host, which is its own."""
    project: str = ""
    """With a dry run, the hash of the project that the hosts were sent."""

    @property
    def hosts(self) -> list[str]:
        """The hosts' names."""
        return list(self.results)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.nproc_per_node * len(self.results)


async def launch(
    sessions: Sequence[Session], job: Job, actor: str, *, forced: str = "", progress: Progress
) -> Launched:
    """Start the run on these hosts, which are connected; returns when its ranks have started.

    `forced` is why to go on in spite of blockers. Raises HostsFailed, HostsDiffer, HostsApart, Blocked,
    RunFailed; then nothing of it runs.
    """
    hosts = [session.view.host_id for session in sessions]
    await asyncio.to_thread(launch_secrets.remember, job.spec.run, job.spec.secret_sources, hosts)
    wish = Wish(job.spec, forced=forced)
    if len(sessions) == 1:
        return await _launch_on_one(sessions[0], job, wish, actor, progress)
    arranged = await arrange.arrange(sessions, wish, job.network, progress)
    await bring(arranged.sessions, job.spec, job.project, progress)
    return await begin(arranged, wish, actor, job.secrets, "", progress)


async def preview(sessions: Sequence[Session], job: Job, actor: str, progress: Progress) -> Launched:
    """What `launch` would start. Hosts get the files and packages that it takes, and start nothing."""
    sent = "" if job.spec.project is None else job.spec.project.sha256
    if len(sessions) == 1:
        await bring(sessions, job.spec, job.project, progress)
        result = await runs.launch(sessions[0], job.spec, actor, dry_run=True)
        return dataclasses.replace(on_one(sessions[0], result), project=sent)
    arranged = await arrange.arrange(sessions, Wish(job.spec), job.network, progress)
    await bring(arranged.sessions, job.spec, job.project, progress)
    order = Order(job.spec, 1, arranged.nodes, arranged.rendezvous, actor)
    plans = await dry_run(arranged.sessions, order)
    return dataclasses.replace(_launched(order, arranged, plans), project=sent)


async def begin(
    arranged: Arrangement, wish: Wish, actor: str, secrets: Mapping[str, str], note: str, progress: Progress
) -> Launched:
    """Begin what was arranged, on all hosts or on none; returns when its ranks have started."""
    order = Order(
        wish.spec,
        wish.attempt,
        arranged.nodes,
        arranged.rendezvous,
        actor,
        secrets,
        wish.forced,
        note,
        wish.resume_step,
    )

    def check(plans: dict[str, Plan]) -> None:
        arrange.check_alike(arranged.sessions, plans)

    plans = await Bringup(arranged.sessions, order, progress, check).run()
    return _launched(order, arranged, plans)


async def bring(
    sessions: Sequence[Session], spec: wire.LaunchSpec, project: Project | None, progress: Progress
) -> None:
    """Send every host what the run needs of files and packages, unless it has them. Raises HostsFailed."""

    def sending(host: str, done: int, total: int) -> None:
        progress(host, f"sending code, {100 * done // total if total else 100} %")

    async def bring_one(session: Session) -> None:
        await runs.upload_trainer(session, spec)
        if project is not None:
            await code_sync.sync(session, project, sending)
        if spec.env_setup is not None:
            cwd = "" if spec.project is not None else spec.cwd
            await env_setup.build(
                session, spec.python, spec.env_setup, lambda line: progress(session.name, line), cwd=cwd
            )

    outcome = await everywhere(sessions, bring_one)
    if len(sessions) == 1 and outcome.failed:
        raise outcome.failed[sessions[0].name]
    outcome.results()


async def _launch_on_one(session: Session, job: Job, wish: Wish, actor: str, progress: Progress) -> Launched:
    arrange.check_agents([session])
    progress(session.name, "checking")
    plans = await arrange.plan([session], wish)
    await arrange.check([session], wish, plans, None, progress)
    await bring([session], job.spec, job.project, progress)
    progress(session.name, "starting")
    try:
        result = await runs.launch(session, job.spec, actor, secrets=job.secrets, forced=wish.forced)
        progress(session.name, f"{result.run} starts; waiting for its ranks")
        await run_watch.started(session, result.run, result.attempt)
    except asyncio.CancelledError:
        await call_off(session, job.spec.run, actor, progress)
        raise
    return on_one(session, result)


async def call_off(session: Session, run: str, actor: str, progress: Progress) -> None:
    """Stop on one host what was begun there, when nobody waits for it any more."""
    progress(session.name, f"interrupted, stopping {run}")
    try:
        await runs.stop(session, run, actor, 0)
        progress(session.name, f"interrupted, {run} was stopped")
    except EncampError as error:
        progress(session.name, f"interrupted, {run} was not stopped: {error.message}")


def on_one(session: Session, result: LaunchResult) -> Launched:
    """The same for one host."""
    return Launched(result.run, result.attempt, result.nproc_per_node, {session.name: result})


def _launched(order: Order, arranged: Arrangement, plans: dict[str, Plan]) -> Launched:
    results: dict[str, LaunchResult] = {session.name: plans[session.name] for session in arranged.sessions}
    nproc = next(iter(plans.values())).nproc_per_node
    return Launched(order.spec.run, order.attempt, nproc, results, order.nodes, order.rendezvous)
