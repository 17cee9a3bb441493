"""What the app does with runs: the question first, then the action on all of their hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from . import diagnosis_facts, run_facts
from .actions import Action
from .fleet import group_restart, group_stop, prospect, runs, signals
from .fleet.errors import EncampError, UsageError
from .fleet.members import leftovers, members
from .fleet.parallel import Progress
from .fleet.prospect import Prospect
from .fleet.run_files import RunFiles
from .fleet.store import Link, RunView
from .screens.confirm import stop_question
from .screens.get import GetScreen
from .screens.restart import Choice, RestartScreen

if TYPE_CHECKING:
    from .app import EncampApp


def restart(app: EncampApp, run_id: str) -> None:
    """Restart a run on all of its hosts, or without those that the user leaves out. Raises UsageError."""
    run = app.find_run(run_id)

    def answered(choice: Choice | None) -> None:
        if choice is not None:
            _if_there(app, lambda: _restart(app, run.id, choice))

    def current() -> RunView:
        return app.store.find_run(run.id) or run

    def look(choice: Choice) -> Awaitable[Prospect]:
        return prospect.look(current(), app.sessions(), without=choice.without, from_step=choice.from_step)

    app.push_screen(RestartScreen(current, lambda: members(current(), app.sessions()), look), answered)


def _restart(app: EncampApp, run_id: str, choice: Choice) -> None:
    run, sessions = app.find_run(run_id), app.sessions()
    hosts, others = members(run, sessions), leftovers(run, sessions)

    async def work(progress: Progress) -> str:
        if choice.from_step is not None:  # while the question stood, a run that went on may have removed it
            await prospect.look(run, sessions, without=choice.without, from_step=choice.from_step)
        begun = await group_restart.restart(
            hosts,
            others,
            run_id,
            runs.actor(),
            without=choice.without,
            resume_step=choice.from_step,
            attempt=run.attempt,
            progress=progress,
        )
        return f"{run_id}: attempt {begun.attempt} has started."

    names = [member.name for member in hosts if member.name not in choice.without]
    app.begin(Action(f"restarting {run_id}", names), work)


def let_go_on(app: EncampApp, run_id: str) -> None:
    """Send SIGCONT to ranks that a signal has stopped: it destroys nothing. Raises UsageError."""
    run, sessions = app.find_run(run_id), app.sessions()
    ranks = run_facts.stopped(run)
    if not ranks:
        raise UsageError(f"No rank of {run.id} is stopped by a signal.", "d shows what they wait for.")
    who = diagnosis_facts.ranks_words(ranks)

    async def work(_progress: Progress) -> str:
        failed: list[EncampError] = []
        for rank in ranks:
            try:
                await signals.send(run, rank, "SIGCONT", runs.actor(), sessions)
            except EncampError as error:
                failed.append(error)  # the others are to go on all the same
        if failed:
            raise failed[0]
        return f"{run.id}: SIGCONT was sent to {who}."

    hosts = dict.fromkeys(run_facts.host_of(run, rank).name for rank in ranks)
    app.begin(Action(f"letting {who} of {run.id} go on", list(hosts)), work, show=False)


def stop(app: EncampApp, run_id: str) -> None:
    """Stop a run on all of its hosts, ranks of an older attempt included. Raises UsageError."""
    run = app.find_run(run_id)
    if not (run.live or run.leftovers):
        raise UsageError(f"{run.id} has ended already: {run.state}.", "There is nothing to stop.")

    def answered(yes: bool | None) -> None:
        if yes:
            _if_there(app, lambda: _stop(app, run.id))

    app.push_screen(stop_question(run), answered)


def _stop(app: EncampApp, run_id: str) -> None:
    run, sessions = app.find_run(run_id), app.sessions()
    hosts, others = members(run, sessions), leftovers(run, sessions)

    async def work(progress: Progress) -> str:
        stopped = await group_stop.stop(hosts, others, run_id, runs.actor(), None, progress)
        if stopped.failed and len(hosts) == 1:
            raise next(iter(stopped.failed.values()))
        if stopped.failed:
            raise group_stop.complaint(run_id, stopped)
        return f"{run_id}: {stopped.state}, all its processes are gone."

    names = dict.fromkeys([member.name for member in hosts] + [session.name for session in others])
    app.begin(Action(f"stopping {run_id}", list(names)), work)


def get(app: EncampApp, text: str) -> None:
    """Ask which files of a run are wanted: `text` is a run and perhaps a path in it. Raises UsageError."""
    name, _, path = text.partition(" ")
    run = app.find_run(name)
    hosts = dict.fromkeys(host.name for host, _ in (*run.parts, *run.older) if host.link is Link.LIVE)
    app.push_screen(GetScreen(RunFiles([app.fleet.session(host) for host in hosts], run.id), path.strip()))


def _if_there(app: EncampApp, act: Callable[[], None]) -> None:
    """Do it, unless the run was removed while the question stood."""
    try:
        act()
    except UsageError as error:
        app.show_error(error)
