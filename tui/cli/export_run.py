"""Exports for `encamp export`: finds the host with the checkpoint, lets it write the file, fetches that."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .. import formatting as fmt
from ..fleet.download import Download
from ..fleet.errors import EncampError, RequestRefused, UsageError
from ..fleet.host_files import HostFiles
from ..fleet.run_export import RunExport, newest
from ..transfers import destination
from . import output
from .find_run import Found, open_run
from .get_files import Meter, find

ENDINGS = (".safetensors", ".pt", ".pth")


async def run(args: argparse.Namespace) -> int:
    """Find the checkpoint, have it exported, fetch the file, and print what came."""
    ending = _ending(args.to)
    start = time.monotonic()
    async with open_run(args) as found:
        host, step, folder = await _checkpoint(found, args.step, args.on)
        exporter = RunExport(host)
        meter = Meter(enabled=sys.stderr.isatty())
        try:
            if sys.stderr.isatty():
                what = f"of step {step}" if step is not None else f"of the newest checkpoint in {folder}"
                output.note(output.clean(f"{host.session.name} writes the weights {what}"))
            written = await exporter.write(step, ending, folder)
            root = destination(Path(args.to), f"{found.id}-step-{written.step}{ending}")
            files, _, _ = await host.find(written.path)
            download = Download(host, meter.show)
            (fetched,) = await download.run(root, files, force=args.force)
            await exporter.remove(written.path)
        finally:
            meter.end()
            await host.close()
    for name in written.left_out:
        output.note(output.clean(f"not in the file, as it is no tensor: {name}"))
    if args.json:
        output.print_json(
            {
                "run": found.id,
                "host": host.session.name,
                "step": written.step,
                "file": str(fetched.target),
                "bytes": fetched.file.size,
                "sha256": fetched.sha256,
                "unchanged": fetched.unchanged,
                "tensors": written.tensors,
                "parameters": written.parameters,
                "left_out": list(written.left_out),
                "seconds": round(time.monotonic() - start, 3),
            }
        )
    else:
        print(
            output.clean(
                f"{fetched.target}: step {written.step}, {fmt.plural(written.tensors, 'tensor')}, "
                f"{written.parameters / 1e6:.2f} M numbers, {fmt.size(fetched.file.size)}"
                + (", which was here already" if fetched.unchanged else "")
                + (f", from {host.session.name}" if len(found.members) > 1 else "")
            )
        )
    return 0


def _ending(to: str) -> str:
    path = Path(to)
    if path.is_dir():
        return ENDINGS[0]
    if path.suffix not in ENDINGS:
        raise UsageError(
            f"--to {to} is neither a folder nor ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}."
        )
    return path.suffix


async def _checkpoint(found: Found, step: int | None, on: str | None) -> tuple[HostFiles, int | None, str]:
    """A host with the checkpoint, its step, and its folder where that is not the run's.

    Of another folder the host itself finds out which step is the newest: None. Raises EncampError when there
    is none that is complete.
    """
    for session in found.sessions:
        if on in (None, session.name):
            host = HostFiles(session, found.id)
            folder = await _own_folder(host)
            if folder:
                return host, step, folder
            await host.close()
    wanted = "" if step is None else f"/step-{step}"
    try:
        there = await find(found, f"checkpoints{wanted}", on)
    except RequestRefused as error:
        if error.code != "no-file":
            raise
        raise _none(found.id, step) from error
    newest_there = newest(there.files)
    if newest_there is None:
        await there.host.close()
        raise _none(found.id, step)
    return there.host, newest_there, ""


async def _own_folder(host: HostFiles) -> str:
    try:
        return await RunExport(host).own_folder()
    except EncampError:
        return ""  # whoever looks for checkpoints in the run's folder says what is wrong


def _none(run: str, step: int | None) -> EncampError:
    which = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
    return EncampError(
        f"There is no {which} in the folder of {run}.",
        f"See what was saved, and where: encamp logs {run} | grep saved",
    )
