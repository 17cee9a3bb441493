"""`encamp shell`: a session on a host, by hand."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from . import parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    shell_parser = parser.add(
        commands,
        "shell",
        shell,
        summary="log in on a host, or run one command there",
        details="What comes after -- is a command line for the shell there, as with ssh. It gets a terminal "
        "when there is one here. Exits as the shell or command did; with 3 when the connection is lost.",
        examples=[
            "encamp shell vast-a",
            "encamp shell vast-a -- nvidia-smi -l 1",
            "encamp shell vast-a -- tar -C /data -cf - set1 > set1.tar",
        ],
        json=False,
        connects=True,
    )
    # For the app, which covers what is on the terminal when it comes back.
    shell_parser.add_argument("--wait-on-error", action="store_true", help=argparse.SUPPRESS)
    shell_parser.add_argument("host", metavar="HOST", help="the host, as `encamp hosts list` has it")


def shell(args: argparse.Namespace) -> Coroutine[None, None, int]:
    """Log in, or run the command."""
    from .shell_session import run

    return run(args)
