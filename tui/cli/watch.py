"""`encamp watch`: keep an eye on a run while nobody looks, and restart it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.watching import Happening
    from .find_run import Found
    from .parser import Commands

MAX_RESTARTS = 10


def register(commands: Commands) -> None:
    """Add the command."""
    watch_parser = parser.add(
        commands,
        "watch",
        watch,
        summary="watch over a run while nobody looks: tell of stalls and ends, restart it",
        details="Goes on until the run has ended. With --on-stall restart a run that is stalled or failed is "
        "restarted as by `encamp restart`, until two restarts in a row bring no new checkpoint and no new "
        "step, or the same failure comes back twice without a new checkpoint. --notify runs a command for "
        "the shell with one JSON object on its standard input: event, run, verdict, culprits, sentence, "
        "host, time. Exits with 1 when the run failed, or was given up.",
        examples=[
            "encamp watch gpt --on-stall restart --notify 'curl -d @- https://ntfy.sh/my-topic'",
            "encamp watch gpt --json | tee watch.jsonl",
        ],
        json=False,
        connects=True,
    )
    parser.add_run(watch_parser)
    watch_parser.add_argument(
        "--on-stall",
        choices=("restart", "notify", "nothing"),
        default="notify",
        help="what to do about a stall or failure; notify is the default, nothing only prints",
    )
    watch_parser.add_argument(
        "--max-restarts",
        type=parser.whole,
        metavar="N",
        default=MAX_RESTARTS,
        help=f"how often it is restarted at most ({MAX_RESTARTS})",
    )
    watch_parser.add_argument("--notify", metavar="CMD", help="run this for what happens")
    watch_parser.add_argument("--json", action="store_true", help="print one JSON object a line")


async def watch(args: argparse.Namespace) -> int:
    """Watch to the end."""
    from ..lifetime import Signalled, until_signal

    try:
        return await until_signal(_watch(args))
    except Signalled as end:
        return end.exit_code


async def _watch(args: argparse.Namespace) -> int:
    from ..fleet.notify import Notifier
    from ..fleet.watching import Watch
    from .find_run import open_run

    notifier = None
    if args.notify and args.on_stall != "nothing":
        notifier = Notifier(args.notify, lambda text: output.note(output.clean(text)))

    def tell(happening: Happening) -> None:
        _print(happening, as_json=args.json)
        if notifier is not None and happening.event != "watching":
            notifier.tell(happening.document())

    async with open_run(args) as found:
        restarts = args.on_stall == "restart"

        async def restart(attempt: int) -> int:
            return await _restart(found, attempt)

        ended = False
        try:
            last = await Watch(
                found.fleet.store,
                found.fleet.sessions,
                found.id,
                restart=restart if restarts else None,
                max_restarts=args.max_restarts,
                tell=tell,
            ).run()
            ended = True
        finally:
            if notifier is not None:
                await notifier.close(patient=ended)
    return 0 if last.event in ("finished", "stopped") else 1


async def _restart(found: Found, attempt: int) -> int:
    """Restart the run on all of its hosts, as they are now, if that attempt is still its newest."""
    from ..fleet import group_restart, runs
    from ..fleet.members import leftovers, members
    from .host_progress import HostProgress

    run, sessions = found.current(), found.fleet.sessions()
    launched = await group_restart.restart(
        members(run, sessions),
        leftovers(run, sessions),
        run.id,
        f"encamp watch of {runs.actor()}",
        attempt=attempt,
        progress=HostProgress(quiet=True).show,
    )
    return launched.attempt


def _print(happening: Happening, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps(happening.document(), ensure_ascii=False, allow_nan=False)
    else:
        when = time.strftime("%H:%M:%S", time.localtime(happening.time))
        verdict = f" [{happening.verdict}]" if happening.verdict and happening.event != "restarting" else ""
        line = output.clean(f"{when}  {happening.event}{verdict}: {happening.sentence}")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
