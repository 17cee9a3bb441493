"""`encamp stop`, `restart` and `wait`: what is done with a run that exists."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
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
        details="A training task goes on from its last checkpoint. On several hosts the next attempt starts "
        "on all of them or on none.",
        examples=[
            "encamp restart gpt-tiny-k3f9x",
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
        with HostProgress(quiet=args.json) as progress:
            launched = await group_restart.restart(
                found.members,
                found.leftovers,
                found.id,
                runs.actor(),
                without=args.without,
                forced=args.force or "",
                progress=progress.show,
            )
    if args.json:
        print_launched(launched, as_json=True)
    else:
        print(f"{found.id}: attempt {launched.attempt} runs, world size {launched.world_size}")
    return 0


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
