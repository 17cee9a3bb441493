"""The terminal is lent to another encamp command while the app stands aside, its connections alive."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from . import lifetime
from .fleet.errors import EncampError

if TYPE_CHECKING:
    from textual.app import App

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tui.__main__ import main; sys.exit(main())"
"""Starts this very encamp: `-m tui` would take a folder of that name in the current directory for it."""

END_SECONDS = 5.0
"""How long the command may take to end when the app has to."""


async def run(app: App[None], *words: str) -> int:
    """Run `encamp WORDS...` on the app's terminal and return its exit code; the app draws nothing meanwhile.

    A process of its own: whatever happens to it, the app's loop and terminal settings are not part of it.
    Raises EncampError where the terminal cannot be lent.
    """
    root = str(Path(__file__).parents[1])
    try:
        # In a batch nothing is drawn: ticks go on, but the screen belongs to somebody else.
        with app.batch_update(), app.suspend(), lifetime.terminal_lent():
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", _START, root, *words)
            try:
                return await child.wait()
            finally:
                if child.returncode is None:
                    child.terminate()
                    await asyncio.wait([asyncio.ensure_future(child.wait())], timeout=END_SECONDS)
    except SuspendNotSupported:
        raise EncampError(
            "The app cannot lend this terminal.", f"In another one: encamp {' '.join(words)}"
        ) from None
