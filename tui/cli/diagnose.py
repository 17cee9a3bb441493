"""`encamp diagnose`: which rank holds a run up, or failed first, and why."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from . import parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    diagnose_parser = parser.add(
        commands,
        "diagnose",
        diagnose,
        summary="say which rank holds a run up, or failed first, and why",
        details="Looks at all ranks of the run on all of its hosts: their Python stacks, the collectives "
        "that they have called, their processes and GPUs. Nothing is changed, and no rank is held up by it. "
        "Exits with 0 when all is well, with 1 when something is wrong, with 3 when a host cannot be asked.",
        examples=[
            "encamp diagnose gpt-tiny-k3f9x",
            "encamp diagnose gpt --attempt 1",
            "encamp diagnose gpt --bundle evidence.tar.gz",
            "encamp diagnose gpt --json | jq -r '.sentence, .culprits[]'",
        ],
        connects=True,
    )
    parser.add_run(diagnose_parser)
    diagnose_parser.add_argument(
        "--attempt", metavar="N", type=parser.whole, help="another attempt than the newest"
    )
    diagnose_parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="write all that is known into one .tar.gz, for a bug report or for later: evidence, stacks, "
        "events, the ends of all logs, telemetry, what was launched; values of secrets are taken out",
    )
    diagnose_parser.add_argument("--force", action="store_true", help="overwrite FILE when it exists")


def diagnose(args: argparse.Namespace) -> Coroutine[None, None, int]:
    """Ask, judge and print."""
    from .diagnose_run import run

    return run(args)
