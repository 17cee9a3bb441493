"""`encamp demo`: all of it on this machine alone."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser
from .app import is_terminal

if TYPE_CHECKING:
    from .parser import Commands

MOST_HOSTS = 32


def register(commands: Commands) -> None:
    """Add the command."""
    demo_parser = parser.add(
        commands,
        "demo",
        demo,
        summary="try encamp: hosts on loopback, a real training run, the app",
        details="Everything is temporary: leaving it stops and removes all of it. Its hosts are not among "
        "yours: other commands, such as `encamp diagnose`, see them in another shell after the line that "
        "it says at the start, `. $TMPDIR/encamp-demo-.../env` (/tmp without TMPDIR).",
        examples=[
            "encamp demo",
            "encamp demo --strategy fsdp --hosts 4",
            "encamp demo --drill",
            "encamp demo --headless --strategy pp --steps 20 --json",
            "encamp demo --strategy tf-mirrored --python ~/tf/bin/python",
        ],
    )
    demo_parser.add_argument(
        "--strategy", metavar="NAME", default="ddp", help="how the ranks share the work, such as fsdp (ddp)"
    )
    demo_parser.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the Python of the ranks; default: one here that has what the strategy needs",
    )
    demo_parser.add_argument("--hosts", type=parser.whole, metavar="N", default=2, help="how many hosts (2)")
    demo_parser.add_argument(
        "--steps", type=parser.whole, metavar="N", help="how long to train; default: the profile's"
    )
    demo_parser.add_argument(
        "--drill", action="store_true", help="without the app: stop a rank, and see how fast it is named"
    )
    demo_parser.add_argument(
        "--headless", action="store_true", help="without the app: train to the end and report"
    )


def demo(args: argparse.Namespace) -> int:
    """Run the demo and report what came of it."""
    from .. import demo as demonstration
    from ..fleet.errors import UsageError

    if not 1 <= args.hosts <= MOST_HOSTS:
        raise UsageError(f"--hosts {args.hosts} is not possible.", f"It is a number from 1 to {MOST_HOSTS}.")
    if args.steps == 0:
        raise UsageError("--steps 0 is not possible.", "It is a number of at least 1.")
    headless = args.headless or args.drill
    if args.json and not headless:
        raise UsageError("--json is for --headless and --drill.", "The app has no result to print.")
    if not headless and not is_terminal():
        raise UsageError("The demo's app needs a terminal.", "Without one: encamp demo --headless")
    code, result = demonstration.run(
        strategy=args.strategy,
        python=args.python,
        hosts=args.hosts,
        steps=args.steps,
        headless=headless,
        drill=args.drill,
        say=output.note,
    )
    if result is None:
        return code
    if args.json:
        output.print_json(result)
        return code
    if args.drill:
        return code  # all of it was said as it happened
    run = result["run"]
    print(f"{run['id']}: {run['state']} after {result['seconds']['total']:.1f} s")
    rows = [
        (str(rank["rank"]), str(rank["step"]), _loss(rank["loss_first"]), _loss(rank["loss_last"]))
        for rank in result["ranks"]
    ]
    output.print_table(("RANK", "STEP", "FIRST LOSS", "LAST LOSS"), rows, right=(0, 1, 2, 3))
    return code


def _loss(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"
