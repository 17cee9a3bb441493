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
        summary="stop a run: all its processes, on all ranks",
        details="The ranks get SIGTERM, and what is left after the grace, orphans included, is killed.",
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
        details="A training task goes on from its last checkpoint.",
        examples=["encamp restart gpt-tiny-k3f9x", "encamp restart gpt --json"],
        connects=True,
    )
    parser.add_run(restart_parser)
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
    """Stop a run and say what became of it."""
    from ..fleet import runs
    from .connection import open_run

    async with open_run(args) as (session, run):
        result = await runs.stop(session, run.id, runs.actor(), args.grace)
    if args.json:
        output.print_json({"run": run.id, "attempt": run.info.attempt, "host": session.name, **result})
    else:
        ended = len(result["reaped"])
        more = f", {ended} processes had to be ended one by one" if ended else ""
        print(output.clean(f"{run.id}: {result['state']}{more}"))
    return 0


async def restart(args: argparse.Namespace) -> int:
    """Start the next attempt of a run and wait until its ranks have started."""
    from ..fleet import run_watch, runs
    from .connection import open_run

    async with open_run(args) as (session, run):
        result = await runs.restart(session, run.id, runs.actor())
        await run_watch.started(session, result.run, result.attempt)
    if args.json:
        output.print_json(
            {
                "run": result.run,
                "attempt": result.attempt,
                "hosts": [session.name],
                "world_size": result.world_size,
            }
        )
    else:
        print(f"{result.run}: attempt {result.attempt} runs, world size {result.world_size}")
    return 0


async def wait(args: argparse.Namespace) -> int:
    """Wait for a run and say where it stands."""
    from agent.wire import END_STATES

    from ..fleet import run_watch
    from .connection import open_run

    wanted = END_STATES if args.state == ENDED else (args.state,)
    async with open_run(args) as (session, found):
        run = await run_watch.wait(session, found.id, wanted, timeout=args.timeout)
        state = session.view.run_state(run)
    info = run.info
    reached = state in wanted and not (args.state == ENDED and state == "failed")
    if args.json:
        output.print_json(
            {
                "run": info.run,
                "attempt": info.attempt,
                "state": state,
                "reason": info.reason,
                "exit_code": info.exit_code,
            }
        )
    else:
        print(output.clean(f"{info.run}: {state}" + (f": {info.reason}" if info.reason else "")))
    return 0 if reached else 1
