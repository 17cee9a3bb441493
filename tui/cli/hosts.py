"""`encamp hosts add|list|remove|rename|forget-key`: the machines that encamp knows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.hosts import Host, Inventory
    from ..fleet.store import HostView
    from .parser import Commands


def register(commands: Commands) -> None:
    """Add the commands of this family."""
    family = parser.group(commands, "hosts", summary="add, list, rename and remove hosts")
    add_parser = parser.add(
        family,
        "add",
        add,
        summary="add a host and connect to it",
        details="The host is kept even when it does not answer yet.",
        examples=[
            'encamp hosts add "ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080" --name vast-a',
            "encamp hosts add ubuntu@203.0.113.9:2222",
            "encamp hosts add root@203.0.113.8 --interface wg0     train over a VPN's interface",
            "encamp hosts add my-alias              an alias of ~/.ssh/config",
        ],
        connects=True,
    )
    add_parser.add_argument(
        "target",
        metavar="SSH-COMMAND",
        help="what the provider's page shows, in quotes; or user@host:port; or an alias of ~/.ssh/config",
    )
    add_parser.add_argument("--name", help="what to call it; the default is made from its address")
    add_parser.add_argument(
        "--interface", metavar="NAME", help="the network interface for training with other hosts, such as wg0"
    )
    add_parser.add_argument(
        "--peer-address", metavar="IP", help="the address by which the other hosts of a run reach this one"
    )
    add_parser.add_argument(
        "--ports", metavar="FIRST-LAST", help="the ports that the others reach, when not all are open"
    )
    add_parser.add_argument("--no-connect", action="store_true", help="only write it down")
    parser.add(
        family,
        "list",
        list_,
        summary="list the hosts",
        examples=["encamp hosts list", "encamp hosts list --json"],
    )
    remove_parser = parser.add(
        family,
        "remove",
        remove,
        summary="forget a host",
        details="What runs there goes on, and its files stay.",
        examples=["encamp hosts remove vast-a"],
    )
    remove_parser.add_argument("host", metavar="HOST")
    rename_parser = parser.add(
        family,
        "rename",
        rename,
        summary="give a host another name",
        examples=["encamp hosts rename vast-a box"],
    )
    rename_parser.add_argument("host", metavar="HOST")
    rename_parser.add_argument("new", metavar="NEW-NAME")
    forget_parser = parser.add(
        family,
        "forget-key",
        forget_key,
        summary="forget the accepted host key of a host",
        details="The way out when a host was set up anew and shows another key: the next connection asks.",
        examples=["encamp hosts forget-key vast-a"],
    )
    forget_parser.add_argument("host", metavar="HOST")


def inventory() -> Inventory:
    """The user's hosts."""
    from ..fleet.hosts import Inventory
    from ..fleet.paths import hosts_file

    return Inventory(hosts_file())


async def add(args: argparse.Namespace) -> int:
    """Write a host down, then try it: a failure to connect leaves it in the list."""
    from ..fleet import memory
    from ..fleet.hosts import check_field, parse_ssh_command

    fields = {
        name: check_field(name, value, f"--{name.replace('_', '-')}")
        for name in ("interface", "peer_address", "ports")
        if (value := getattr(args, name)) is not None
    }
    target = parse_ssh_command(args.target)
    if target.ignored:
        output.note(f"not needed here and left out: {', '.join(target.ignored)}")
    host = inventory().add_target(target, args.name, **fields)
    memory.forget(host.name)
    if args.no_connect:
        if args.json:
            output.print_json(as_json(host))
        else:
            print(f"{host.name}: added, {host.address}")
        return 0
    return await _try(args, host)


async def _try(args: argparse.Namespace, host: Host) -> int:
    from ..fleet.errors import HostError
    from ..fleet.status import link_word
    from .connection import CONNECT_SECONDS, open_fleet

    error: HostError | None = None
    async with open_fleet(args, [host]) as fleet:
        session = fleet.session(host.name)
        try:
            await session.connected(CONNECT_SECONDS, patient=False)
        except HostError as failure:
            error = failure
        view = fleet.store.hosts[host.name]
        state = link_word(view)
    if args.json:
        output.print_json(
            {
                **as_json(host),
                "state": state,
                "message": error.message if error else "",
                "hint": error.hint if error else "",
                "hostname": view.hello.hostname if view.hello else None,
                "gpus": len(view.sample.gpu.gpus) if view.sample else None,
                "cores": view.sample.cpu.limit_cores if view.sample else None,
            }
        )
    elif error is None:
        print(f"{host.name}: added, {host.address}: {describe(view)}")
    if error is None:
        return 0
    output.note(f"{host.name} is in the list but cannot be used yet")
    if not args.json:
        output.print_error(error, as_json=False)
    # Rented machines take minutes to start: one that does not answer yet was added all the same.
    return 0 if error.retryable else error.exit_code


def list_(args: argparse.Namespace) -> int:
    """Print the hosts as they are written down; nothing is connected to."""
    file = inventory()
    hosts = file.load()
    if args.json:
        output.print_json({"hosts": [as_json(host) for host in hosts]})
    elif not hosts:
        print('There are no hosts yet. Add one: encamp hosts add "ssh -p 20544 root@203.0.113.7"')
    else:
        rows = [
            (host.name, host.address, host.proxy_jump or "", " ".join(host.identity_files)) for host in hosts
        ]
        output.print_table(("HOST", "ADDRESS", "THROUGH", "KEYS"), rows)
    return 0


def remove(args: argparse.Namespace) -> int:
    """Take a host out of the list."""
    from ..fleet import memory

    host = inventory().remove(args.host)
    memory.forget(host.name)
    if args.json:
        output.print_json({"removed": as_json(host)})
    else:
        print(f"{host.name}: removed; what runs there goes on")
    return 0


def rename(args: argparse.Namespace) -> int:
    """Give a host another name."""
    from ..fleet import memory

    host = inventory().rename(args.host, args.new)
    memory.rename(args.host, args.new)
    if args.json:
        output.print_json({**as_json(host), "old_name": args.host})
    else:
        print(f"{args.host} is now called {host.name}")
    return 0


def forget_key(args: argparse.Namespace) -> int:
    """Drop what was accepted as a host's key."""
    from ..fleet.ssh.client import forget_key as forget

    number = forget(inventory().get(args.host))
    if args.json:
        output.print_json({"host": args.host, "forgotten": number})
    elif number:
        print(f"{args.host}: its key is forgotten; the next connection asks again")
    else:
        print(f"{args.host}: no key of it was accepted by encamp")
    return 0


def as_json(host: Host) -> dict[str, Any]:
    """A host as scripts see it; null is what ~/.ssh/config and SSH's defaults say."""
    return {
        "name": host.name,
        "address": host.address,
        "hostname": host.hostname,
        "port": host.port,
        "user": host.user,
        "identity_files": list(host.identity_files),
        "identities_only": host.identities_only,
        "proxy_jump": host.proxy_jump,
        "interface": host.interface,
        "peer_address": host.peer_address,
        "ports": list(host.ports) if host.ports else None,
    }


def describe(view: HostView) -> str:
    """What a host has, in a few words."""
    from .. import formatting as fmt
    from ..facts import gpu_totals

    sample = view.sample
    if sample is None:
        return "live"
    totals, problem = gpu_totals(sample.gpu)
    parts = [f"{totals.number_of} {totals.model}" if totals else problem or "no GPU"]
    parts.append(f"{sample.cpu.limit_cores:g} cores")
    parts.append(f"{fmt.gib(sample.memory.limit_bytes)} memory")
    return ", ".join(parts)
