"""`encamp forward`: ports of a host on this machine."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from . import output, parser

if TYPE_CHECKING:
    from ..fleet.forward import Wish
    from .parser import Commands

LAST_PORT = 65535


def register(commands: Commands) -> None:
    """Add the command."""
    forward_parser = parser.add(
        commands,
        "forward",
        forward,
        summary="open ports of a host on this machine, such as TensorBoard's",
        details="Each is opened on 127.0.0.1 only, and stays open while the connection to the host breaks "
        "and is made again. Ctrl-c ends it. Needs no agent on the host.",
        examples=[
            "encamp forward vast-a 6006                  http://127.0.0.1:6006 is port 6006 of the host",
            "encamp forward vast-a 16006:6006 8888       two; the first as 16006 here",
            "encamp forward vast-a 0:6006                the same number, or a free one if that is taken",
        ],
        connects=True,
    )
    forward_parser.add_argument("host", metavar="HOST", help="the host, as `encamp hosts list` has it")
    forward_parser.add_argument(
        "ports",
        metavar="PORT",
        nargs="+",
        type=_wish,
        help="a port of the host, or LOCAL:REMOTE to choose the one here; a chosen one is had or refused",
    )


async def forward(args: argparse.Namespace) -> int:
    """Open the ports and hand on what goes through them until ctrl-c."""
    from ..fleet import local_ports
    from ..fleet.errors import EncampError, UsageError
    from ..fleet.forward import Forwarder
    from .connection import known_hosts, quiet_logging
    from .prompts import prompts

    chosen = [wish.local for wish in args.ports if wish.local]
    if len(chosen) != len(set(chosen)):
        raise UsageError("The same port of this machine is named twice.", "Give each its own.")
    (host,) = known_hosts([args.host])
    quiet_logging()
    forwarder = Forwarder(host, prompts(accept_new_host_key=args.accept_new_host_key), args.ports, _say)
    try:
        opened = await forwarder.open()
        if args.json:
            output.print_json(
                {
                    "host": host.name,
                    "forwards": [
                        {"address": local_ports.ADDRESS, "local_port": port.local, "remote_port": port.remote}
                        for port in opened
                    ],
                }
            )
        for port in opened:
            if port.taken_by is not None:
                _say(f"port {port.remote} is not free here ({port.taken_by}): {port.local} is in its place")
            if not args.json:
                print(f"{local_ports.ADDRESS}:{port.local} is port {port.remote} of {host.name}", flush=True)
        if not args.json:
            output.note("ctrl-c ends it")
        try:
            await forwarder.serve()
        except EncampError as error:
            output.print_error(error, as_json=False)  # the one object has been printed
            return error.exit_code
    finally:
        await forwarder.close()
    return 0


def _say(text: str) -> None:
    output.note(output.clean(text))


def _wish(text: str) -> Wish:
    from ..fleet.forward import Wish

    match = re.fullmatch(r"(?:([0-9]{0,5}):)?([0-9]{1,5})", text)
    local, remote = (int(match[1] or 0), int(match[2])) if match else (0, 0)
    if not (0 < remote <= LAST_PORT and local <= LAST_PORT):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither PORT nor LOCAL:REMOTE, ports from 1 to {LAST_PORT}"
        )
    return Wish(remote, local or None)
