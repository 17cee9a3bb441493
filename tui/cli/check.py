"""`encamp check`: whether hosts are fit for training, alone and together, and what helps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.findings import Finding
    from ..fleet.matrix import Matrix
    from ..fleet.preflight import Report
    from .parser import Commands

INDENT = "  "


def register(commands: Commands) -> None:
    """Add the command."""
    check_parser = parser.add(
        commands,
        "check",
        check,
        summary="find out what is in the way of training on hosts",
        details="Looks at GPUs, Pythons with torch, limits, disk and clock of each host, and with several "
        "also at whether they fit together and reach each other. Changes nothing. Exits with 1 if something "
        "is in the way (a blocker), with 3 when a host cannot be reached.",
        examples=[
            "encamp check vast-a",
            "encamp check vast-a vast-b",
            "encamp check vast-a vast-b --json | jq '.findings[] | select(.level == \"blocker\")'",
        ],
        connects=True,
    )
    check_parser.add_argument("hosts", metavar="HOST", nargs="+", help="the hosts of one launch")
    check_parser.add_argument(
        "--no-throughput",
        action="store_true",
        help="send nothing to measure how much the network carries: some providers bill what is sent",
    )


async def check(args: argparse.Namespace) -> int:
    """Check hosts and print what was found."""
    import asyncio
    import sys

    from ..fleet import preflight
    from ..fleet.errors import HostError
    from .connection import CONNECT_SECONDS, known_hosts, open_fleet

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            output.note(text)

    async with open_fleet(args, known_hosts(args.hosts)) as fleet:
        sessions = fleet.sessions()
        attempts = (session.connected(CONNECT_SECONDS, patient=False) for session in sessions)
        for error in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, HostError):
                raise error
        report = await preflight.check(sessions, throughput=not args.no_throughput, progress=progress)
    if args.json:
        output.print_json(report.to_json())
    else:
        _print(report)
    if report.unreachable:
        return HostError.exit_code
    return 1 if report.blockers else 0


def _print(report: Report) -> None:
    column = max((len(finding.check) for finding in report.findings), default=0)
    for number, name in enumerate((*report.names, "")):
        found = report.of(name)
        if found:
            print(("\n" if number else "") + f"{name or 'together'}: {summary(found)}")
            for finding in found:
                _print_finding(finding, column)
    if report.matrix is not None:
        print()
        _print_matrix(report.matrix)


def summary(found: tuple[Finding, ...]) -> str:
    """How many of the findings are not good, in words."""
    from .. import formatting as fmt
    from ..fleet.findings import BLOCKER, WARNING

    counts = {level: sum(finding.level == level for finding in found) for level in (BLOCKER, WARNING)}
    return ", ".join(fmt.plural(number, level) for level, number in counts.items() if number) or "ok"


def _print_finding(finding: Finding, column: int) -> None:
    begin = f"{INDENT}{finding.level:<7}  {finding.check:<{column}}  "
    print(output.clean(begin + finding.text))
    if finding.fix:
        print(output.clean(" " * len(begin) + finding.fix))


def _print_matrix(matrix: Matrix) -> None:
    from .. import formatting as fmt
    from ..fleet.findings_group import best, way_words

    names = [host.name for host in matrix.hosts]
    rows = [
        (
            source,
            *(way_words(best(matrix, source, target)) if source != target else fmt.NONE for target in names),
        )
        for source in names
    ]
    output.print_table(("FROM \\ TO", *names), rows, right=range(1, len(names) + 1))
