"""`encamp logs`: the bytes that a rank wrote, from the first one on."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from . import parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    logs_parser = parser.add(
        commands,
        "logs",
        logs,
        summary="print what a rank wrote, byte for byte, from the start",
        details="Works while the run goes on and after its end. Files and pipes get the bytes as they are; "
        "on a terminal, escape sequences other than colours are taken out.",
        examples=[
            "encamp logs gpt-tiny-k3f9x                  rank 0",
            "encamp logs gpt --rank 1 -f --tail 100      the last 100 lines, and on until the run ends",
            "encamp logs gpt --merged | grep loss        all ranks, each line with its rank",
            "encamp logs gpt --launcher                  what torchrun itself said",
        ],
        connects=True,
    )
    parser.add_run(logs_parser)
    which = logs_parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=parser.whole, metavar="R", help="this rank; the default is 0")
    which.add_argument("--launcher", action="store_true", help="the launcher's own output")
    which.add_argument("--merged", action="store_true", help="all ranks, each line after its [rank N]")
    logs_parser.add_argument(
        "--attempt", type=parser.whole, metavar="N", help="an earlier attempt; the default is the newest"
    )
    logs_parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
    logs_parser.add_argument("--tail", type=parser.whole, metavar="N", help="begin with the last N lines")


def logs(args: argparse.Namespace) -> Coroutine[None, None, int]:
    """Write the log to stdout."""
    from .log_output import print_logs

    return print_logs(args)
