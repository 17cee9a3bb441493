"""`encamp status`: what all hosts and runs are doing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.store import HostView, RunView, Store
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    status_parser = parser.add(
        commands,
        "status",
        status,
        summary="show hosts, runs and ranks as they are now",
        details="Exits with 3 when none of the hosts that were asked answers.",
        examples=[
            "encamp status",
            "encamp status vast-a vast-b",
            "encamp status --json | jq '.runs[].state'",
        ],
        connects=True,
    )
    status_parser.add_argument("hosts", metavar="HOST", nargs="*", help="only these hosts")


async def status(args: argparse.Namespace) -> int:
    """Ask all hosts at once and print what they say."""
    import asyncio

    from ..fleet import memory
    from ..fleet import status as shapes
    from ..fleet.errors import HostError, UsageError
    from ..fleet.store import Link
    from .connection import CONNECT_SECONDS, known_hosts, open_fleet
    from .hosts import inventory

    listed = inventory().load()
    strange = next((name for name in args.hosts if listed and name not in {host.name for host in listed}), "")
    if strange:
        raise UsageError(
            f"There is no host {strange}.",
            f"`encamp status` takes hosts: {', '.join(host.name for host in listed)}. If {strange} is a run: "
            f"encamp diagnose {strange}, or encamp status alone for all runs",
        )
    hosts = known_hosts(args.hosts) if args.hosts else listed
    async with open_fleet(args, hosts) as fleet:
        attempts = (session.connected(CONNECT_SECONDS, patient=False) for session in fleet.sessions())
        for error in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, HostError):
                raise error
        silent = [view for view in fleet.store.hosts.values() if view.link is not Link.LIVE]
        for view in silent:
            memory.recall(fleet.store, view.name)
        document = shapes.document(fleet.store)
        if args.json:
            output.print_json(document)
        else:
            _print(fleet.store)
    return HostError.exit_code if hosts and len(silent) == len(hosts) else 0


def _print(store: Store) -> None:
    if not store.hosts:
        print('There are no hosts yet. Add one: encamp hosts add "ssh -p 20544 root@203.0.113.7"')
        return
    output.print_table(
        ("HOST", "STATE", "GPUS", "UTIL", "GPU MEMORY", "CPU", "MEMORY", "AGENT"),
        [_host_row(view) for view in store.hosts.values()],
        right=(3, 4, 5, 6),
    )
    for view in store.hosts.values():
        if view.message:
            print(output.clean(f"{view.name}: {view.message} {view.hint}"))
    runs = store.runs()
    if runs:
        print()
        output.print_table(
            ("RUN", "STATE", "ATTEMPT", "HOSTS", "RANKS", "STEP", "s/STEP", "STARTED", "EXIT"),
            [_run_row(run) for run in runs],
            right=(2, 4, 5, 6),
        )


def _host_row(view: HostView) -> tuple[str, ...]:
    from .. import formatting as fmt
    from ..facts import gpu_totals

    sample = view.sample
    if sample is None:
        return (view.name, view.link.value, *[fmt.NONE] * 6)
    totals, problem = gpu_totals(sample.gpu)
    gpus = f"{totals.number_of} {totals.model}" if totals else problem or "none"
    return (
        view.name,
        view.link.value,
        gpus,
        fmt.percent(totals.utilization) if totals else fmt.NONE,
        fmt.gib(totals.memory_used, totals.memory_total) if totals else fmt.NONE,
        fmt.percent(sample.cpu.percent),
        fmt.gib(sample.memory.used_bytes, sample.memory.limit_bytes),
        f"{view.hello.version}, {fmt.size(sample.agent.rss_bytes)}" if view.hello else fmt.UNKNOWN,
    )


def _run_row(run: RunView) -> tuple[str, ...]:
    from .. import formatting as fmt

    info = run.info
    steps = [rank.sample.step_seconds for rank in run.ranks.values() if run.live]
    return (
        info.run,
        run.state,
        str(info.attempt),
        ",".join(run.hosts),
        str(info.world_size),
        fmt.count(run.step) if run.step is not None else fmt.NONE,
        fmt.step_seconds(fmt.mean(steps)) if any(step is not None for step in steps) else fmt.NONE,
        fmt.clock(info.started - run.host.clock_offset),
        fmt.NONE if run.exit_code is None else fmt.exit_words(run.exit_code),
    )
