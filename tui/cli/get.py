"""`encamp get`: files of a run, down to this machine."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from . import parser

if TYPE_CHECKING:
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    get_parser = parser.add(
        commands,
        "get",
        get,
        summary="fetch a file or folder of a run from its host",
        details="Every file is verified by its SHA-256. After an interruption the same command goes on where "
        "it stopped. Links that lead out of the run's folder, devices and names that cannot be shown are "
        "left out and named; the exit code is then 1. Of a run on several hosts it comes from the first that "
        "has it; --on names another.",
        examples=[
            "encamp get gpt-tiny-k3f9x checkpoints/step-100",
            "encamp get gpt checkpoints ./from-vast",
            "encamp get gpt attempts/1/rank0.log",
        ],
        connects=True,
    )
    parser.add_run(get_parser)
    get_parser.add_argument("path", metavar="PATH", help="in the run's folder; . is all of it")
    get_parser.add_argument(
        "dest",
        metavar="DEST",
        nargs="?",
        default=".",
        help="a folder to put it in, or a new name; default: here",
    )
    get_parser.add_argument(
        "--force", action="store_true", help="overwrite files here that are different; equal ones are kept"
    )


def get(args: argparse.Namespace) -> Coroutine[None, None, int]:
    """Fetch and report."""
    from .get_files import run

    return run(args)
