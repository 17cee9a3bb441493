"""`encamp env build|list`: environments on hosts for strategies that need more than torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from .parser import Commands

RECIPES = ("deepspeed", "horovod", "tensorflow")
"""What the agent can build, see agent/env_recipes.py."""

SHOWN_PACKAGES = ("torch", *RECIPES)


def register(commands: Commands) -> None:
    """Add the commands of this family."""
    family = parser.group(commands, "env", summary="build and list environments on hosts")
    build_parser = parser.add(
        family,
        "build",
        build,
        summary="build an environment on a host for a strategy that needs more than torch",
        details="deepspeed is for zero1, zero2 and zero3, horovod for horovod, tensorflow for tf-mirrored "
        'and tf-parameter-server. Launches with python = "auto" find it. What the host\'s own Python has can '
        "be imported in it, and is not changed. A build that was interrupted here goes on there; asking "
        "again follows it. Horovod has been unmaintained since 2023; it is compiled, which takes minutes.",
        examples=[
            "encamp env build deepspeed --on vast-a",
            "encamp env build horovod --on vast-a,vast-b --python /venv/main/bin/python",
        ],
        connects=True,
    )
    build_parser.add_argument("name", metavar="NAME", choices=RECIPES, help=f"one of {', '.join(RECIPES)}")
    _add_on(build_parser)
    build_parser.add_argument(
        "--python",
        metavar="PATH",
        default="auto",
        help="the host's Python that it is made from; the default is the first that fits",
    )
    list_parser = parser.add(
        family,
        "list",
        list_,
        summary="list the environments that encamp has built on a host",
        examples=["encamp env list --on vast-a", "encamp env list --on vast-a --json"],
        connects=True,
    )
    _add_on(list_parser)


def _add_on(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--on", metavar="HOST", action="append", required=True, help="the host, or several as a,b,c"
    )


async def build(args: argparse.Namespace) -> int:
    """Build on all hosts at once, telling what the builds say."""
    from agent import wire

    from ..fleet import env_setup
    from ..fleet.errors import EncampError
    from .connection import host_names, open_hosts

    names = host_names(args.on)

    def show(host: str, line: str) -> None:
        output.note(output.clean(f"{host}: {line}" if len(names) > 1 else line))

    setup = wire.EnvSetup(recipe=args.name)
    async with open_hosts(args, names) as sessions:
        if len(sessions) == 1:
            only = sessions[0]
            built = {
                only.name: await env_setup.build(only, args.python, setup, lambda line: show(only.name, line))
            }
        else:
            built = await env_setup.build_all(sessions, args.python, setup, show)
    for host, environment in built.items():
        if args.name not in environment.packages:
            raise EncampError(
                f"The agent on {host} is too old to know the recipe {args.name}.",
                "Another encamp keeps it there: use the same version wherever you look at this host from.",
            )
    if args.json:
        output.print_json({"hosts": {host: vars_of(each) for host, each in built.items()}})
    for host, each in built.items() if not args.json else ():
        has = f"{args.name} {each.packages[args.name]}"
        word = "built" if each.fresh else "is there already"
        print(output.clean(f"{host}: {has} {word}: {each.python}, made from {each.base}"))
    return 0


async def list_(args: argparse.Namespace) -> int:
    """Print the environments of hosts."""
    from .. import formatting as fmt
    from ..fleet import env_setup
    from ..fleet.parallel import everywhere
    from .connection import host_names, open_hosts

    async with open_hosts(args, host_names(args.on)) as sessions:
        found = (await everywhere(sessions, env_setup.listed)).results()
    if args.json:
        output.print_json(
            {"hosts": {host: [vars_of(each) for each in every] for host, every in found.items()}}
        )
        return 0
    rows = [
        (
            host,
            each.recipe or fmt.listed(each.packages or ()) or fmt.NONE,
            each.state,
            " ".join(f"{name} {each.has[name]}" for name in SHOWN_PACKAGES if name in each.has) or fmt.NONE,
            each.python,
        )
        for host, every in found.items()
        for each in every
    ]
    if not rows:
        print("no environments were built there yet")
        return 0
    output.print_table(("HOST", "FOR", "STATE", "HAS", "PYTHON"), rows)
    return 0


def vars_of(value: object) -> dict[str, object]:
    """The fields of a dataclass, for JSON."""
    from dataclasses import asdict

    return asdict(value)  # type: ignore[call-overload, no-any-return]
