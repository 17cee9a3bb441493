"""`encamp profiles list|show|check`: what can be launched, and reading it for `launch`. `new` is beside."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import output, parser, profiles_new

if TYPE_CHECKING:
    from profiles.schema import Profile

    from .parser import Commands

PROFILE_HELP = "a name of `encamp profiles list`, or a path to a TOML file"


def register(commands: Commands) -> None:
    """Add the commands of this family."""
    family = parser.group(commands, "profiles", summary="show, check and begin profiles: what a run is")
    parser.add(
        family,
        "list",
        list_,
        summary="list the profiles that have a name",
        details="Your own lie in profiles/ of the configuration directory and go before shipped ones.",
        examples=["encamp profiles list", "encamp profiles list --json"],
    )
    show_parser = parser.add(
        family,
        "show",
        show,
        summary="print a profile as it is written",
        examples=["encamp profiles show gpt-tiny", "encamp profiles show gpt-tiny > mine.toml"],
    )
    show_parser.add_argument("profile", metavar="PROFILE", help=PROFILE_HELP)
    check_parser = parser.add(
        family,
        "check",
        check,
        summary="check a profile without launching it",
        examples=["encamp profiles check mine.toml", "encamp profiles check gpt-tiny --set train.steps=50"],
    )
    check_parser.add_argument("profile", metavar="PROFILE", help=PROFILE_HELP)
    add_settings(check_parser)
    profiles_new.register(family)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add `--set`, as often as wanted."""
    command.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="put a value in place of the profile's, such as train.steps=500 or env.NCCL_DEBUG=INFO",
    )


def read(name: str, settings: Sequence[str] = ()) -> Profile:
    """The checked profile `name` with `settings` put in. Raises UsageError with everything that is wrong."""
    from profiles import errors, library, schema

    from ..fleet.errors import UsageError

    try:
        return schema.load(library.find(name, user_folder()), settings)
    except errors.ProfileError as error:
        raise UsageError(str(error)) from error


def user_folder() -> Any:
    """Where the user's own profiles lie."""
    from ..fleet.paths import config_dir

    return config_dir() / "profiles"


def as_json(profile: Profile) -> dict[str, Any]:
    """A profile as scripts see it: every key, defaults included."""
    return {
        "name": profile.name,
        "file": profile.file,
        "description": profile.description,
        "run": {**dataclasses.asdict(profile.run), "nproc_per_node": profile.run.nproc_per_node or "auto"},
        "env": dict(profile.env),
        "train": dict(profile.train),
        "code": profile.code and dataclasses.asdict(profile.code),
        "env_setup": profile.env_setup and dataclasses.asdict(profile.env_setup),
        "secrets": dict(profile.secrets),
        "network": dataclasses.asdict(profile.network),
    }


def list_(args: argparse.Namespace) -> int:
    """Print every profile that has a name; a broken one is listed with what is wrong."""
    from profiles import errors, library, schema

    entries: list[dict[str, Any]] = []
    for entry in library.available(user_folder()):
        fields = {"name": entry.name, "file": str(entry.path), "shipped": entry.shipped}
        try:
            profile = schema.load(entry.path)
        except errors.ProfileError as error:
            entries.append({**fields, "description": None, "strategy": None, "error": str(error)})
        else:
            strategy = profile.run.strategy
            description = profile.description
            entries.append({**fields, "description": description, "strategy": strategy, "error": None})
    if args.json:
        output.print_json({"profiles": entries})
        return 0
    rows = [
        (
            item["name"],
            item["strategy"] or "?",
            "shipped" if item["shipped"] else "yours",
            item["description"] if item["error"] is None else f"broken: {item['error'].splitlines()[0]}",
        )
        for item in entries
    ]
    output.print_table(("PROFILE", "STRATEGY", "FROM", "DESCRIPTION"), rows)
    return 0


def show(args: argparse.Namespace) -> int:
    """Print the text of a profile, or its checked values as JSON."""
    from profiles import errors, library, source

    from ..fleet.errors import UsageError

    if args.json:
        output.print_json(as_json(read(args.profile)))
        return 0
    try:
        text = source.read(library.find(args.profile, user_folder()))
    except errors.ProfileError as error:
        raise UsageError(str(error)) from error
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def check(args: argparse.Namespace) -> int:
    """Say that a profile is in order; what is not is raised."""
    profile = read(args.profile, args.settings)
    if args.json:
        output.print_json({"ok": True, "profile": as_json(profile)})
    else:
        print(f"{profile.file}: in order")
    return 0
