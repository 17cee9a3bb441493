"""`encamp` alone: the app."""

from __future__ import annotations

import argparse
import sys


async def run(args: argparse.Namespace) -> int:
    """Open the app on all hosts."""
    from ..fleet.errors import UsageError

    if not is_terminal():
        raise UsageError("The app needs a terminal.", "In scripts use the commands: encamp --help")
    from ..lifetime import Signalled, until_signal

    try:
        return await until_signal(_show(read_only=args.read_only))
    except Signalled as end:
        return end.exit_code


def is_terminal() -> bool:
    """Whether there is a screen to draw on and a keyboard to read from."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


async def _show(*, read_only: bool) -> int:
    from ..app import EncampApp
    from ..fleet.fleet import Fleet
    from ..fleet.prompts import NoPrompts
    from ..fleet.store import Store
    from ..lifetime import show
    from .connection import quiet_logging
    from .hosts import inventory

    quiet_logging()
    fleet = Fleet(inventory(), Store(), NoPrompts())  # the app takes the place of these prompts
    app = EncampApp(fleet, read_only=read_only)
    try:
        fleet.start()
        return await show(app)
    finally:
        await fleet.close()
