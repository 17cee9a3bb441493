"""`encamp strategies`: how ranks can share the work, when to choose which, and whether hosts can run it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.session import Session
    from ..fleet.strategies import HostHas, Verdict
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    strategies_parser = parser.add(
        commands,
        "strategies",
        strategies,
        summary="list how ranks can share the work, and when to choose which",
        details="With --on also whether these hosts can run it together, with a rank for each GPU, and what "
        "helps where not. Changes nothing.",
        examples=[
            "encamp strategies",
            "encamp strategies --on vast-a",
            "encamp strategies --on vast-a,vast-b",
        ],
        connects=True,
    )
    strategies_parser.add_argument(
        "--on", metavar="HOST", action="append", default=[], help="the hosts of one launch, as for launch"
    )


async def strategies(args: argparse.Namespace) -> int:
    """Print the list; with hosts, the verdicts on it."""
    from profiles import keys

    from ..fleet.strategies import STRATEGIES, judge

    known = await _known(args) if args.on else []
    names = [host.name for host in known]
    verdicts = {name: judge(name, known) if known else None for name in keys.STRATEGIES}
    if args.json:
        output.print_json(
            {
                "hosts": names,
                "strategies": [
                    {
                        "name": name,
                        "when": STRATEGIES[name].when,
                        "needs": {
                            "packages": list(STRATEGIES[name].packages),
                            "ranks": STRATEGIES[name].ranks,
                            "gpus": STRATEGIES[name].gpus,
                            "one_host": STRATEGIES[name].one_process,
                        },
                        "here": _here(verdict),
                    }
                    for name, verdict in verdicts.items()
                ],
            }
        )
        return 0
    rows = [
        (
            name,
            STRATEGIES[name].when,
            ", ".join(STRATEGIES[name].needs) if verdict is None else _words(verdict),
        )
        for name, verdict in verdicts.items()
    ]
    last = f"CAN RUN ON {' + '.join(names)}" if names else "NEEDS"
    output.print_table(("STRATEGY", "CHOOSE IT WHEN", last), rows)
    return 0


def _here(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else {"can_run": verdict.state, "why": verdict.why, "fix": verdict.fix}


def _words(verdict: Verdict) -> str:
    return ": ".join(filter(None, (verdict.state, verdict.text)))


async def _known(args: argparse.Namespace) -> list[HostHas]:
    """What the hosts have. Raises HostError, RequestRefused, and HostsFailed where there are several."""
    from ..fleet import interpreters
    from ..fleet.parallel import everywhere
    from ..fleet.strategies import HostHas
    from .connection import host_names, open_hosts

    async def ask(session: Session) -> HostHas:
        means = await interpreters.ask(session)
        return HostHas(session.name, means.gpus, means.cores, means.interpreters)

    async with open_hosts(args, host_names(args.on)) as sessions:
        return list((await everywhere(sessions, ask)).results().values())
