"""`encamp launch`: start a run on a host, or on several."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser
from .profiles import PROFILE_HELP, add_settings

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    launch_parser = parser.add(
        commands,
        "launch",
        launch,
        summary="start a run on a host, or on several",
        details="Returns once all ranks have started; on several hosts they start on all or on none. "
        "Interrupted before that, it stops what was begun. What comes after -- goes to the script as "
        "arguments.",
        examples=[
            "encamp launch gpt-tiny --on vast-a",
            "encamp launch ./mine.toml --on vast-a --set env.NCCL_DEBUG=INFO -- --epochs 3",
            "encamp launch gpt-tiny --on vast-a,vast-b        one run on two hosts",
            "encamp launch gpt-tiny --on vast-a --dry-run     print the command and start nothing",
        ],
        connects=True,
    )
    launch_parser.add_argument("profile", metavar="PROFILE", help=PROFILE_HELP)
    launch_parser.add_argument(
        "--on",
        metavar="HOST",
        action="append",
        required=True,
        help="the host to run on; several as a,b,c or with one --on each, the first has rank 0",
    )
    add_settings(launch_parser)
    launch_parser.add_argument("--name", help="what to call the run; the default is the profile's name")
    launch_parser.add_argument("--strategy", help="short for --set run.strategy=...")
    launch_parser.add_argument("--nproc-per-node", metavar="N", help="short for --set run.nproc_per_node=...")
    launch_parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the exact command and environment that each host would run, and start nothing",
    )
    parser.add_force(launch_parser)


async def launch(args: argparse.Namespace) -> int:
    """Check the profile here, then start it there."""
    from ..lifetime import Signalled, until_signal

    try:
        return await until_signal(_launch(args))
    except Signalled as end:
        return end.exit_code


async def _launch(args: argparse.Namespace) -> int:
    from ..fleet import coordinator, job, runs
    from . import profiles
    from .connection import host_names, known_hosts, open_hosts
    from .host_progress import HostProgress
    from .launch_output import print_dry_run, print_launched
    from .prompts import agree_to_size

    settings = list(args.settings)
    if args.strategy is not None:
        settings.append(f"run.strategy={args.strategy}")
    if args.nproc_per_node is not None:
        settings.append(f"run.nproc_per_node={args.nproc_per_node}")
    profile = profiles.read(args.profile, settings)
    names = host_names(args.on)
    known_hosts(names)
    work = await job.from_profile(
        profile, name=args.name, extra=args.extra, agree=agree_to_size, dry_run=args.dry_run
    )
    for note in work.project.notes if work.project else ():
        output.note(output.clean(note))
    async with open_hosts(args, names) as sessions:
        with HostProgress(quiet=args.json) as progress:
            if args.dry_run:
                would = await coordinator.preview(sessions, work, runs.actor(), progress.show)
            else:
                done = await coordinator.launch(
                    sessions, work, runs.actor(), forced=args.force or "", progress=progress.show
                )
    if args.dry_run:
        print_dry_run(would, as_json=args.json)
    else:
        print_launched(done, as_json=args.json)
    return 0
