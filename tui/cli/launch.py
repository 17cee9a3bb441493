"""`encamp launch`: start a run on a host."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser
from .profiles import PROFILE_HELP, add_settings

if TYPE_CHECKING:
    from ..fleet.runs import LaunchResult
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    launch_parser = parser.add(
        commands,
        "launch",
        launch,
        summary="start a run on a host",
        details="Returns once all ranks have started. What comes after -- goes to the script as arguments.",
        examples=[
            "encamp launch gpt-tiny --on vast-a",
            "encamp launch ./mine.toml --on vast-a --set env.NCCL_DEBUG=INFO -- --epochs 3",
            "encamp launch gpt-tiny --on vast-a --dry-run     print the command and start nothing",
        ],
        connects=True,
    )
    launch_parser.add_argument("profile", metavar="PROFILE", help=PROFILE_HELP)
    launch_parser.add_argument("--on", metavar="HOST", required=True, help="the host to run on")
    add_settings(launch_parser)
    launch_parser.add_argument("--name", help="what to call the run; the default is the profile's name")
    launch_parser.add_argument("--strategy", help="short for --set run.strategy=...")
    launch_parser.add_argument("--nproc-per-node", metavar="N", help="short for --set run.nproc_per_node=...")
    launch_parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the exact command and environment that the host would run, and start nothing",
    )


async def launch(args: argparse.Namespace) -> int:
    """Check the profile here, then start it there."""
    from ..fleet import run_watch, runs
    from . import profiles
    from .connection import known_hosts, open_host

    settings = list(args.settings)
    if args.strategy is not None:
        settings.append(f"run.strategy={args.strategy}")
    if args.nproc_per_node is not None:
        settings.append(f"run.nproc_per_node={args.nproc_per_node}")
    profile = profiles.read(args.profile, settings)
    known_hosts([args.on])
    name = args.name or profile.name
    spec = runs.spec_from_profile(profile, runs.new_run_id(name), name=name, extra=args.extra)
    async with open_host(args, args.on) as session:
        result = await runs.launch(session, spec, runs.actor(), dry_run=args.dry_run)
        if args.dry_run:
            _print_dry_run(args, result)
            return 0
        if not args.json:
            output.note(f"{result.run} starts on {session.name}; waiting for its ranks")
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
        ranks = "1 rank" if result.world_size == 1 else f"{result.world_size} ranks"
        print(f"{result.run}: {ranks} on {session.name}")
        output.note(f"follow it with: encamp logs {result.run} -f")
    return 0


def _print_dry_run(args: argparse.Namespace, result: LaunchResult) -> None:
    if args.json:
        output.print_json(
            {
                "dry_run": True,
                "hosts": [args.on],
                "world_size": result.world_size,
                "nproc_per_node": result.nproc_per_node,
                "python": result.python,
                "argv": list(result.argv),
                "env": result.env,
                "cwd": result.cwd,
                "command": result.command_line,
                "by_hand": result.by_hand,
            }
        )
    else:
        print(result.command_line)
        output.note(
            f"a launch creates the folders in it; to try it by hand:\n  {output.clean(result.by_hand)}"
        )
