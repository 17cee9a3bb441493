"""What `launch` and `restart` print: what runs where, or with a dry run what would."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..fleet.coordinator import Launched
from ..formatting import plural
from . import output


def print_launched(launched: Launched, *, as_json: bool, more: Mapping[str, object] | None = None) -> None:
    """Say what has been started; `more` goes into the JSON."""
    if as_json:
        output.print_json({**_common(launched), **(more or {})})
        return
    print(f"{launched.run}: {plural(launched.world_size, 'rank')} on {', '.join(launched.hosts)}")
    output.note(f"follow it with: encamp logs {launched.run}{' --merged' if launched.nodes else ''} -f")


def print_dry_run(launched: Launched, *, as_json: bool) -> None:
    """Say what each host would execute."""
    if as_json:
        output.print_json(_dry_run(launched))
        return
    for name, result in launched.results.items():
        if launched.nodes:
            print(output.clean(f"# on {name}"))
        print(output.clean(result.command_line))
        output.note(
            "a launch creates the folders in it; to try it by hand"
            + (f" on {name}" if launched.nodes else "")
            + f":\n  {output.clean(result.by_hand(launched.project))}"
        )


def _common(launched: Launched) -> dict[str, Any]:
    document: dict[str, Any] = {
        "run": launched.run,
        "attempt": launched.attempt,
        "hosts": launched.hosts,
        "world_size": launched.world_size,
    }
    if launched.rendezvous is not None:
        document["nproc_per_node"] = launched.nproc_per_node
        document["nodes"] = [
            {"node_rank": rank, "host": host, "address": node.address, "interface": node.interface}
            for rank, (host, node) in enumerate(zip(launched.hosts, launched.nodes, strict=True))
        ]
        document["rendezvous"] = dataclasses.asdict(launched.rendezvous)
    return document


def _dry_run(launched: Launched) -> dict[str, Any]:
    commands = [
        {
            "host": name,
            "python": result.python,
            "argv": list(result.argv),
            "env": result.env,
            "cwd": result.cwd,
            "command": result.command_line,
            "by_hand": result.by_hand(launched.project),
        }
        for name, result in launched.results.items()
    ]
    common = {name: value for name, value in _common(launched).items() if name not in ("run", "attempt")}
    document = {"dry_run": True, **common, "nproc_per_node": launched.nproc_per_node}
    if launched.nodes:
        return {**document, "commands": commands}
    return {**document, **{name: value for name, value in commands[0].items() if name != "host"}}
