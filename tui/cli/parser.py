"""The command line's grammar: the parser, the options that several commands share, and the dispatch.

A family's module offers `register(commands)`, which adds its parsers and names a handler for each. Handlers
take the parsed arguments, return the exit code, be it as a coroutine, and raise `EncampError` for what the
user is meant to read. Families import all that is large inside handlers: `encamp --help` stays fast.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, NoReturn

from agent.version import VERSION

from ..fleet.errors import UsageError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Handler = Callable[[argparse.Namespace], "int | Coroutine[None, None, int]"]

DESCRIPTION = """\
Launch, watch and restart multi-GPU training on machines that offer nothing but SSH.
Without a command it opens the app."""

EPILOG = """\
first steps:
  encamp hosts add "ssh -p 20544 root@203.0.113.7" --name vast-a   what the provider's page shows, in quotes
  encamp check vast-a                  what is in the way of training there
  encamp launch gpt-tiny --on vast-a   start a run
  encamp logs RUN -f                   follow it; a unique prefix of RUN is enough
  encamp demo                          try all of it on this machine alone

exit codes: 0 done, 1 it failed, 2 wrong usage, 3 a host cannot be reached, 130 interrupted"""


TEXT_WIDTH = 78
"""Columns of running text in help: examples below it keep their line breaks."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ours, so that they look like every other refusal."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing the usage and leaving."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}.", f"What is possible: {self.prog} --help")


def build() -> Parser:
    """The parser with every command."""
    from . import (
        app,
        check,
        control,
        demo,
        diagnose,
        drill,
        env,
        export,
        forward,
        get,
        hosts,
        launch,
        logs,
        profiles,
        shell,
        signal,
        status,
        strategies,
        watch,
    )

    parser = Parser(
        prog="encamp",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"encamp {VERSION}")
    parser.add_argument(
        "--read-only",
        action="store_true",
        help="refuse, and leave out of the app, what changes a host or a run",
    )
    parser.set_defaults(handler=app.run, json=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for family in (
        hosts,
        check,
        strategies,
        env,
        profiles,
        launch,
        status,
        logs,
        diagnose,
        control,
        watch,
        signal,
        drill,
        get,
        export,
        shell,
        forward,
        demo,
    ):
        family.register(commands)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Understand a command line (without the program's name). Raises UsageError; exits for --help."""
    words, extra = list(argv), []
    if words[:1] in (["launch"], ["shell"]) and "--" in words:
        # Kept out of argparse, which drops a `--` here and interprets the rest there.
        at = words.index("--")
        words, extra = words[:at], words[at + 1 :]
    args, unknown = build().parse_known_args(words)
    if unknown:
        what = f"encamp {args.command}" if args.command else "encamp"
        hint = f"What is possible: {what} --help"
        if words[:2] == ["hosts", "add"]:
            hint = "Put the whole ssh command in quotes."
        elif words[:1] == ["get"] and not any(word.startswith("-") for word in unknown):
            hint = "RUN, PATH and DEST go together: options come before or after them."
        raise UsageError(f"Not understood: {' '.join(unknown)}", hint)
    args.extra = extra
    if args.read_only and _changes(args):
        raise UsageError(
            f"encamp {args.command} changes hosts or runs, and --read-only keeps all as it is.",
            "If that is meant: leave out --read-only",
        )
    return args


CHANGING = ("launch", "stop", "restart", "signal", "drill", "env", "export", "shell")
"""Commands that --read-only refuses; watching is one when it may restart."""


def _changes(args: argparse.Namespace) -> bool:
    return args.command in CHANGING or (args.command == "watch" and args.on_stall == "restart")


def add(
    commands: Commands,
    name: str,
    handler: Handler,
    *,
    summary: str,
    details: str = "",
    examples: Sequence[str] = (),
    json: bool = True,
    connects: bool = False,
) -> argparse.ArgumentParser:
    """Add one command. `examples` are whole command lines; `connects` adds the options of a connection."""
    epilog = "\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else None
    description = f"{summary[:1].upper()}{summary[1:]}. {details}".strip()
    parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, TEXT_WIDTH),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(handler=handler, json=False)
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    if connects:
        parser.add_argument(
            "--accept-new-host-key",
            action="store_true",
            help="accept the key of a host that was never seen; a changed key is refused all the same",
        )
    return parser


def group(commands: Commands, name: str, *, summary: str) -> Commands:
    """Add a command that only has sub-commands (`hosts`, `profiles`)."""
    parser = commands.add_parser(
        name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.", allow_abbrev=False
    )
    return parser.add_subparsers(title="commands", metavar="COMMAND", dest=f"{name}_command", required=True)


def add_run(command: argparse.ArgumentParser) -> None:
    """Add the argument that names a run, and `--on` that says where it is."""
    command.add_argument("run", metavar="RUN", help="the run's id, or as much of it as no other has")
    command.add_argument("--on", metavar="HOST", help="look for it on this host only")


def add_force(command: argparse.ArgumentParser) -> None:
    """Add `--force`, which goes on where a check says that it would not work."""
    command.add_argument(
        "--force",
        metavar="REASON",
        type=_reason,
        help="start although a check says that it will not work; the reason is recorded with the run",
    )


def add_yes(command: argparse.ArgumentParser) -> None:
    """Add `--yes`, which answers what would be asked on a terminal."""
    command.add_argument("--yes", action="store_true", help="do not ask")


def _reason(text: str) -> str:
    if not text.strip() or len(text) > 500:
        raise argparse.ArgumentTypeError("say in up to 500 characters why")
    return text.strip()


def seconds(text: str) -> float:
    """A span of time as an option's value: a number of seconds of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def whole(text: str) -> int:
    """A whole number of at least 0 as an option's value."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
