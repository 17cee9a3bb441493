"""Fetches for `encamp get`, and shows how it goes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from .. import formatting as fmt
from ..fleet import run_files
from ..fleet.download import Download, Progress
from ..fleet.errors import EncampError, RequestRefused, UsageError
from ..fleet.host_files import clean_path
from ..fleet.run_files import RunFiles
from ..fleet.session import Session
from ..transfers import destination, line
from . import output
from .find_run import Found, open_run

SHOW_SECONDS = 0.2
"""How often the line with the progress is drawn."""


async def run(args: argparse.Namespace) -> int:
    """Find out what there is, fetch it, and print what came."""
    path = clean_path(args.path)
    async with open_run(args) as found:
        there = await find(found, path, args.on)
        host, skipped = there.host, there.skipped
        root = destination(Path(args.dest), found.id if path == "." else path.rpartition("/")[2])
        meter = Meter(enabled=sys.stderr.isatty())
        start = time.monotonic()
        try:
            download = Download(host, meter.show)
            fetched = await download.run(root, there.files, force=args.force)
            if there.is_folder:
                root.mkdir(parents=True, exist_ok=True)
        finally:
            meter.end()
            await host.close()
        seconds = time.monotonic() - start
    for left in skipped:
        output.note(output.clean(f"not fetched: {left.path}: {left.reason}"))
    if args.json:
        output.print_json(
            {
                "run": found.id,
                "host": host.session.name,
                "path": path,
                "dest": str(root),
                "bytes": download.progress.total,
                "received_bytes": download.progress.received,
                "seconds": round(seconds, 3),
                "files": [
                    {
                        "path": str(item.target),
                        "bytes": item.file.size,
                        "sha256": item.sha256,
                        "unchanged": item.unchanged,
                    }
                    for item in fetched
                ],
                "skipped": [{"path": left.path, "reason": left.reason} for left in skipped],
            }
        )
    else:
        kept = sum(item.unchanged for item in fetched)
        print(
            output.clean(
                f"{root}: {fmt.plural(len(fetched), 'file')}, {fmt.size(download.progress.total)}"
                + (f", {kept} of them were here already" if kept else "")
                + (f", from {host.session.name}" if len(found.members) > 1 else "")
            )
        )
    return 1 if skipped else 0


async def find(found: Found, path: str, on: str | None) -> run_files.Found:
    """The files on the first host that has them, or on the one called `on`.

    The run's hosts come first, then those that only earlier attempts were on. Raises RequestRefused when none
    has them, as the first one puts it, and why hosts could not be asked.
    """
    wanted = [member for member in found.members if on in (None, member.name)]
    refusals: list[EncampError] = [member.problem for member in wanted if member.problem is not None]
    empty: run_files.Found | None = None
    async for sessions in _places(found, on):
        try:
            there = await RunFiles(sessions, found.id).find(path)
        except RequestRefused as error:
            if error.code != "no-file":
                raise
            refusals.append(error)
        else:
            if there.files:
                return there
            empty = empty or there
    if empty:
        return empty
    if not refusals:
        raise UsageError(f"{on} is not a host of {found.id}.", f"They are: {', '.join(found.run.hosts)}")
    raise refusals[0]


async def _places(found: Found, on: str | None) -> AsyncIterator[list[Session]]:
    """The run's hosts, then the others; of these the one called `on`, and never none."""
    here = [session for session in found.sessions if on in (None, session.name)]
    if here:
        yield here
    others = [session for session in await found.everyone() if session not in found.sessions]
    earlier = [session for session in others if session.live and on in (None, session.name)]
    if earlier:
        yield earlier


class Meter:
    """One line on stderr: how much has come, how fast, how long it will take."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._start = self._drawn = time.monotonic()
        self._width = 0

    def show(self, progress: Progress) -> None:
        """Draw it, now and then."""
        now = time.monotonic()
        if self._enabled and now - self._drawn >= SHOW_SECONDS:
            self._drawn = now
            self._draw(line(progress, now - self._start))

    def end(self) -> None:
        """Take it away."""
        if self._width:
            self._draw("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _draw(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
