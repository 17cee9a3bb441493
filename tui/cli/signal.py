"""`encamp signal`: a signal to one rank."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    signal_parser = parser.add(
        commands,
        "signal",
        signal,
        summary="send a signal to one rank of a run",
        details="CONT lets a rank go on that was stopped. All others end a rank that does not handle them or "
        "hold it up, and with it the whole job: they are confirmed by typing the rank's number, or with "
        "--yes. Who has sent what is written into the run's events.",
        examples=[
            "encamp signal gpt-tiny-k3f9x --rank 3 --signal CONT",
            "encamp signal gpt --rank 3 --signal KILL --yes",
        ],
        connects=True,
    )
    parser.add_run(signal_parser)
    signal_parser.add_argument("--rank", type=parser.whole, metavar="N", required=True, help="which rank")
    signal_parser.add_argument(
        "--signal", metavar="NAME", required=True, help="CONT, STOP, TERM, KILL, INT, USR1, ..."
    )
    parser.add_yes(signal_parser)


async def signal(args: argparse.Namespace) -> int:
    """Confirm it, and send it."""
    from ..fleet import runs, signals
    from ..fleet.errors import EncampError, UsageError
    from .find_run import open_run
    from .prompts import confirmed, is_terminal

    name = signals.named(args.signal)
    ask = name not in signals.HARMLESS and not args.yes
    if ask and not is_terminal():
        raise UsageError(
            f"{name} may end rank {args.rank}, and with it the whole job.", "If that is meant: add --yes"
        )
    async with open_run(args) as found:
        attempt = found.run.attempt
        host = signals.session_of(found.run, args.rank, found.sessions).name
        if ask and not await confirmed(
            f"{name} may end rank {args.rank} of {found.id} on {host}, and with it the whole job.\n"
            "Type the rank's number to send it: ",
            str(args.rank),
        ):
            raise EncampError("Nothing was sent: it was not confirmed.")
        if found.current().attempt != attempt:
            raise EncampError(f"Nothing was sent: {found.id} was restarted meanwhile.", "Look at it again.")
        sent = await signals.send(found.current(), args.rank, name, runs.actor(), found.sessions)
    if args.json:
        output.print_json(
            {
                "run": found.id,
                "attempt": attempt,
                "rank": args.rank,
                "host": sent.host,
                "pid": sent.pid,
                "signal": name,
            }
        )
    else:
        print(output.clean(f"{found.id}: {name} was sent to rank {args.rank} on {host}, process {sent.pid}"))
    return 0
