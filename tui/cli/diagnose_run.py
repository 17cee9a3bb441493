"""Asks for `encamp diagnose`, writes the bundle, and chooses the exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import formatting as fmt
from ..fleet import diagnosis
from ..fleet.diagnosis import Report
from ..fleet.errors import EncampError, HostError, UsageError
from ..fleet.evidence_bundle import Written, check_target, write
from ..fleet.run_watch import last_words
from . import diagnose_text, output
from .find_run import Found, open_run


async def run(args: argparse.Namespace) -> int:
    """Ask all hosts, print the verdict, write the bundle."""
    target = Path(args.bundle) if args.bundle is not None else None
    if args.force and target is None:
        raise UsageError("--force goes with --bundle FILE.", "What is possible: encamp diagnose --help")
    if target is not None:
        check_target(target, force=args.force)
    async with open_run(args) as found:
        if args.attempt is None:
            sessions = [member.session for member in found.members if member.session is not None]
        else:  # it may have been on other hosts
            await found.everyone()
            sessions = found.fleet.sessions()
        report = await diagnosis.examine(found.current(), sessions, args.attempt)
        words = await _last_words(found, report)
        written = None
        if target is not None:
            if sys.stderr.isatty():
                output.note(output.clean(f"fetching the logs of {fmt.plural(len(report.parts), 'host')}"))
            written = await write(report, target, force=args.force)
    for note in report.notes:
        output.note(output.clean(note))
    document = diagnosis.document(report)
    if args.json:
        output.print_json(document | ({"bundle": _bundle(written)} if written else {}))
    else:
        diagnose_text.show(report, words)
        if written is not None:
            print(output.clean(f"\n{written.file}: {fmt.size(written.bytes)}, the evidence of this"))
    for missing in written.missing if written is not None else ():
        output.note(output.clean(f"not in the bundle: {missing}"))
    return exit_code(report)


def exit_code(report: Report) -> int:
    """0 when all is well, 1 when something is wrong, 3 when a host's ranks are not known."""
    verdict = report.diagnosis.verdict
    unknown = any(part.problem is not None for part in report.parts)
    if verdict == "host-unreachable" or (verdict == "healthy" and unknown):
        return HostError.exit_code
    return 0 if verdict == "healthy" else 1


async def _last_words(found: Found, report: Report) -> tuple[str, str]:
    """The end of the log that tells most of a failure that has no traceback, and whose it is."""
    failed = report.failed
    if report.diagnosis.verdict == "healthy" or report.state not in ("failed", "stopped"):
        return "", ""
    if failed and failed[0].traceback:
        return "", ""
    streams = [(f"rank{failed[0].rank}", failed[0].host)] if failed else []
    streams += [("launcher", part.member.name) for part in report.parts if part.evidence is not None]
    for stream, host in streams:
        try:
            words = await last_words(found.fleet.session(host), report.run, report.attempt, stream)
        except EncampError:
            continue
        if words.strip():
            return stream, words
    return "", ""


def _bundle(written: Written) -> dict[str, object]:
    return {"file": str(written.file), "bytes": written.bytes, "missing": list(written.missing)}
