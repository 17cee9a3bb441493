"""`encamp` alone: the app."""

from __future__ import annotations

import argparse
import signal
import sys


async def run(args: argparse.Namespace) -> int:
    """Open the app on all hosts."""
    from ..fleet.errors import UsageError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("The app needs a terminal.", "In scripts use the commands: encamp --help")
    import asyncio

    from ..app import EncampApp
    from ..fleet.fleet import Fleet
    from ..fleet.prompts import NoPrompts
    from ..fleet.store import Store
    from .connection import quiet_logging
    from .hosts import inventory

    quiet_logging()
    fleet = Fleet(inventory(), Store(), NoPrompts())  # the app takes the place of these prompts
    app = EncampApp(fleet, read_only=args.read_only)
    fleet.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, app.exit)  # ended in any other way it would leave the terminal raw
    try:
        await app.run_async()
    finally:
        await fleet.close()
    return app.return_code or 0
