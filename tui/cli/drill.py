"""`encamp drill`: stop one rank of a real run for a moment, and see how fast it is named."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.drill import Outcome
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    drill_parser = parser.add(
        commands,
        "drill",
        drill,
        summary="stop one rank of a run for a moment, and see how fast encamp names it",
        details="The rank gets SIGSTOP, and SIGCONT as soon as it is named or the time is over, also when "
        "this command is interrupted or killed. The run loses a few seconds. Exits with 0 when the right "
        "rank was named in time and the run went on.",
        examples=["encamp drill gpt-tiny-k3f9x", "encamp drill gpt --rank 3 --seconds 60 --json"],
        connects=True,
    )
    parser.add_run(drill_parser)
    drill_parser.add_argument("--rank", type=parser.whole, metavar="N", help="which rank (the last one)")
    drill_parser.add_argument(
        "--seconds",
        type=parser.seconds,
        metavar="S",
        help="how long it may stay stopped; default: a few times what the run's rhythm allows",
    )


async def drill(args: argparse.Namespace) -> int:
    """Do it and say how it went."""
    from ..fleet.drill import MAX_SECONDS
    from ..fleet.errors import UsageError
    from ..lifetime import Signalled, until_signal

    if args.seconds is not None and not 1 <= args.seconds <= MAX_SECONDS:
        raise UsageError(
            f"--seconds {args.seconds:g} is not possible.", f"It is a number from 1 to {MAX_SECONDS:.0f}."
        )
    try:
        return await until_signal(_drill(args))
    except Signalled as end:
        return end.exit_code


async def _drill(args: argparse.Namespace) -> int:
    from ..fleet import drill as drilling
    from ..fleet import runs
    from .find_run import open_run

    def say(at: float | None, text: str) -> None:
        when = "" if at is None else f"{at:6.1f} s  "
        if at is None or args.json:
            output.note(output.clean(f"{when}{text}"))
        else:
            print(output.clean(f"{when}{text}"), flush=True)

    async with open_run(args) as found:
        outcome = await drilling.drill(
            found.fleet.store,
            found.sessions,
            found.id,
            runs.actor(),
            rank=args.rank,
            seconds=args.seconds,
            say=say,
        )
    if args.json:
        output.print_json(drilling.document(outcome))
    else:
        print(output.clean(summary(outcome)))
    return 0 if outcome.good else 1


def summary(outcome: Outcome) -> str:
    """How it went, in one sentence."""
    who = f"rank {outcome.rank} on {outcome.host}"
    if outcome.named and outcome.verdict_seconds is not None:
        text = f"{who} was named after {outcome.verdict_seconds:.1f} s"
    elif outcome.verdict:
        others = ", ".join(map(str, outcome.culprits)) or "nobody"
        text = f"{who} was stopped, and encamp named {others}: {outcome.verdict}"
    elif outcome.alarm_seconds is not None:
        text = f"the alarm was called, and {who} was not named within {outcome.seconds:.0f} s"
    else:
        text = f"no alarm within {outcome.seconds:.0f} s: {who} was stopped and nobody noticed"
    went = "; the run goes on" if outcome.went_on else f"; the run did not go on, it is {outcome.state}"
    return f"{outcome.run}: {text}{went}"
