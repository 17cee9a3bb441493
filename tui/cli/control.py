"""`encamp stop`, `restart` and `wait`: what is done with a run that exists."""

from __future__ import annotations

import argparse
import posixpath
import time
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.prospect import Prospect
    from .find_run import Found
    from .parser import Commands

ENDED = "ended"
"""The pseudo state that `wait` waits for by default: any in which nothing of the run is left."""


def register(commands: Commands) -> None:
    """Add the commands of this family."""
    stop_parser = parser.add(
        commands,
        "stop",
        stop,
        summary="stop a run: all its processes, on all of its hosts",
        details="The ranks get SIGTERM, and what is left after the grace, orphans included, is killed. Exits "
        "with 3 when one of its hosts could not be asked.",
        examples=["encamp stop gpt-tiny-k3f9x", "encamp stop gpt --grace 5 --json"],
        connects=True,
    )
    parser.add_run(stop_parser)
    stop_parser.add_argument(
        "--grace",
        type=parser.seconds,
        metavar="SECONDS",
        help="how long the ranks may take to end by themselves; the default is the profile's",
    )
    restart_parser = parser.add(
        commands,
        "restart",
        restart,
        summary="stop a run if it lives, and start it again as its next attempt",
        details="A training task goes on from its newest complete checkpoint, or from the one that --from "
        "names. Before, it is said what is restarted, from what and what is lost, and on a terminal it is "
        "asked. On several hosts the next attempt starts on all of them or on none.",
        examples=[
            "encamp restart gpt-tiny-k3f9x",
            "encamp restart gpt --from step-200        newer checkpoints are set aside",
            "encamp restart gpt --without vast-b      go on without a host, on fewer ranks",
        ],
        connects=True,
    )
    parser.add_run(restart_parser)
    restart_parser.add_argument(
        "--without",
        metavar="HOST",
        action="append",
        default=[],
        help="leave out this host of the run; may be given more than once",
    )
    restart_parser.add_argument(
        "--from",
        dest="from_step",
        metavar="CHECKPOINT",
        type=checkpoint,
        help="go back to this one, such as step-200; 0 begins anew; for the built-in trainer",
    )
    parser.add_yes(restart_parser)
    parser.add_force(restart_parser)
    wait_parser = parser.add(
        commands,
        "wait",
        wait,
        summary="wait until a run has ended, or is in some state",
        details="A connection that breaks is made again. Exits with 1 when the run failed (unless that was "
        "waited for), when it ended in another state than the one waited for, and when the time is over.",
        examples=[
            "encamp wait gpt && encamp launch eval --on vast-a",
            "encamp wait gpt --state running --timeout 60",
        ],
        connects=True,
    )
    parser.add_run(wait_parser)
    wait_parser.add_argument(
        "--state",
        default=ENDED,
        choices=(
            ENDED,
            "starting",
            "running",
            "stalled",
            "stopping",
            "stopped",
            "finished",
            "failed",
            "unreachable",
        ),
        help="the state to wait for; the default is any end",
    )
    wait_parser.add_argument(
        "--timeout", type=parser.seconds, metavar="SECONDS", help="give up after so long"
    )


class Step(int):
    """The step of a checkpoint, and the folder that was named with it; empty where none was."""

    folder = ""


def checkpoint(text: str) -> Step:
    """The step of a checkpoint: `200`, `step-200` or its path in the run's folder."""
    folder, _, name = text.rstrip("/").rpartition("/")
    step = Step(parser.whole(name.removeprefix("step-")))
    step.folder = folder
    return step


def refuse_other_folder(step: int | None, run: str, path: str) -> None:
    """Raise UsageError when the checkpoint was named with a folder that is not `path`, that of the run."""
    from ..fleet.errors import UsageError

    folder = posixpath.normpath(step.folder) if isinstance(step, Step) and step.folder else ""
    if folder and folder != path and not path.endswith(f"/{folder}"):
        raise UsageError(
            f"{folder} is not where {run} has its checkpoints: that is {path or 'not known'}.",
            f"To go back to a checkpoint of its own: --from step-{step}",
        )


async def stop(args: argparse.Namespace) -> int:
    """Stop a run on all of its hosts and say what became of it."""
    from ..fleet import group_stop, runs
    from .find_run import open_run
    from .host_progress import HostProgress

    async with open_run(args) as found:
        several = len(found.members) > 1
        with HostProgress(quiet=not several, keep=True) as progress:
            stopped = await group_stop.stop(
                found.members, found.leftovers, found.id, runs.actor(), args.grace, progress.show
            )
    if not several and stopped.failed:
        raise next(iter(stopped.failed.values()))
    if args.json:
        output.print_json(
            {
                "run": found.id,
                "attempt": found.run.attempt,
                "host": None if several else next(iter(stopped.hosts)),
                "state": stopped.state,
                "reaped": [pid for part in stopped.hosts.values() for pid in part.reaped],
                "hosts": [
                    {"name": name, "state": part.state, "reaped": part.reaped}
                    for name, part in stopped.hosts.items()
                ],
                "not_asked": [
                    {"name": name, "message": error.message, "hint": error.hint}
                    for name, error in stopped.failed.items()
                ],
            }
        )
    else:
        more = f", {stopped.reaped} processes had to be ended one by one" if stopped.reaped else ""
        print(output.clean(f"{found.id}: {stopped.state}{more}"))
    if stopped.failed:
        error = group_stop.complaint(found.id, stopped)
        output.print_error(error, as_json=False)
        return error.exit_code
    return 0


async def restart(args: argparse.Namespace) -> int:
    """Start the next attempt of a run on all of its hosts and wait until its ranks have started."""
    from ..lifetime import Signalled, until_signal

    try:
        return await until_signal(_restart(args))
    except Signalled as end:
        return end.exit_code


async def _restart(args: argparse.Namespace) -> int:
    from ..fleet import group_restart, runs
    from .find_run import open_run
    from .host_progress import HostProgress
    from .launch_output import print_launched

    async with open_run(args) as found:
        group_restart.staying_members(found.members, args.without, found.id)  # else it is refused anyway
        prospect = await _agreed(found, args)
        with HostProgress(quiet=args.json) as progress:
            launched = await group_restart.restart(
                found.members,
                found.leftovers,
                found.id,
                runs.actor(),
                without=args.without,
                forced=args.force or "",
                resume_step=args.from_step,
                attempt=prospect.attempt - 1,
                progress=progress.show,
            )
    if args.json:
        print_launched(launched, as_json=True, more={"from": _from(prospect)})
    else:
        print(f"{found.id}: attempt {launched.attempt} runs, world size {launched.world_size}")
    return 0


async def _agreed(found: Found, args: argparse.Namespace) -> Prospect:
    """Say what a restart means; on a terminal, ask. Raises EncampError when it is not wanted."""
    from ..fleet import prospect as prospects
    from ..fleet.errors import EncampError
    from .prompts import confirmed, is_terminal

    run = found.current()
    prospect = await prospects.look(run, found.sessions, without=args.without, from_step=args.from_step)
    refuse_other_folder(args.from_step, run.id, prospect.path)
    if not args.json or is_terminal():
        for sentence in prospect.sentences(time.time() + run.host.clock_offset):
            output.note(output.clean(sentence))
    if not args.yes and is_terminal() and not await confirmed("Restart it? (yes/no) ", "yes"):
        raise EncampError(f"{found.id} was not restarted.", "Nothing was changed: it is as it was.")
    return prospect


def _from(prospect: Prospect) -> dict[str, object]:
    """What `restart --json` says of what the run went on from."""
    known = prospect.ours
    return {
        "step": (prospect.checkpoint.step if prospect.checkpoint else 0) if known else None,
        "lost_steps": prospect.lost_steps,
        "lost_seconds": prospect.lost_seconds,
    }


async def wait(args: argparse.Namespace) -> int:
    """Wait for a run and say where it stands."""
    from ..fleet import group_watch
    from .find_run import open_run

    wanted = () if args.state == ENDED else (args.state,)
    async with open_run(args) as found:
        run = await group_watch.wait(
            found.fleet.store, found.fleet.sessions(), found.id, wanted, timeout=args.timeout
        )
        state, reason = run.standing()
        attempt, exit_code = run.attempt, run.exit_code
    reached = state in wanted or (args.state == ENDED and state != "failed")
    if args.json:
        output.print_json(
            {
                "run": run.id,
                "attempt": attempt,
                "state": state,
                "reason": reason,
                "exit_code": exit_code,
            }
        )
    else:
        print(output.clean(f"{run.id}: {state}" + (f": {reason}" if reason else "")))
    return 0 if reached else 1
