"""The lab by hand: hosts until ctrl-C, commands that do to them what happens to rented ones, clean-up."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from .cleanup import labs, remove_orphans
from .host import LabHost
from .lab import Lab
from .options import Cable
from .tools import Impossible, ToolFailed, why_not

COMMANDS = """Commands, one a line:
  power-cut HOST    power-on HOST    reboot HOST    replace HOST (another machine at its address)
  unplug HOST       plug-in HOST     cable HOST [LATENCY_MS [LOSS [RATE_MBIT]]]
  cut HOST [HOST]   mend [HOST]      (cut: from the other host, or from here)
"""


_ON_A_HOST: dict[str, Callable[[LabHost], None]] = {
    "power-cut": LabHost.power_cut,
    "power-on": LabHost.power_on,
    "reboot": LabHost.reboot,
    "replace": LabHost.replace,
    "unplug": LabHost.unplug,
    "plug-in": LabHost.plug_in,
}


def main() -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args()
    reason = why_not()
    if reason:
        print(f"No lab on this machine: {reason}.", file=sys.stderr)
        return 1
    try:
        if options.command == "down":
            _down()
        else:
            _up(options)
    except (Impossible, ToolFailed) as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def _up(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    with Lab() as lab:
        for _ in range(options.count):
            host = lab.add(
                noise=options.noise,
                sftp=not options.no_sftp,
                python=options.python,
                shm=options.shm,
                noexec_home=options.noexec_home,
                cpus=options.cpus,
                pids=options.pids,
                memory=options.memory,
                nat=options.nat,
                overlays=tuple(tuple(each.split("=", 1)) for each in options.overlay),
                resolves=options.resolves,
                gpus=options.gpus,
                clock_offset=options.clock_offset,
                cable=Cable(options.latency, options.loss, options.rate),
            )
            print(f"{host.name}: ssh -p {host.ssh_port} -i {lab.key} root@{host.address}")
        print(f"\n{COMMANDS}\nCtrl-C ends the lab.", flush=True)
        for line in sys.stdin:
            _obey(lab, line)
        signal.pause()  # nobody is there to type: until a signal


def _obey(lab: Lab, line: str) -> None:
    try:
        words = shlex.split(line)
        if words:
            _do(lab, words[0], words[1:])
            print("done", flush=True)
    except (ValueError, TypeError, IndexError, AssertionError, ToolFailed, Impossible) as error:
        print(f"{error}\n{COMMANDS}", flush=True)


def _do(lab: Lab, command: str, words: list[str]) -> None:
    numbers = [float(word) for word in words[1:]] if command == "cable" else []
    names = words[:1] if command == "cable" else words
    unknown = [name for name in names if name not in lab.hosts]
    if unknown:
        raise ValueError(f"There is no host {unknown[0]}.")
    hosts = [lab.hosts[name] for name in names]
    if command == "cut":
        lab.cut(*hosts)
    elif command == "mend":
        lab.mend(*hosts)
    elif command == "cable":
        hosts[0].set_cable(Cable(*numbers))
    elif command in _ON_A_HOST:
        _ON_A_HOST[command](hosts[0])
    else:
        raise ValueError(f"There is no command {command}.")


def _down() -> None:
    for name in remove_orphans():
        print(f"removed {name}")
    for name in sorted(labs()):
        print(f"{name} is in use")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("down", help="remove what killed labs left; labs in use stay")
    up = commands.add_parser("up", help="start hosts and print how to reach them")
    up.add_argument("count", type=int, nargs="?", default=2)
    up.add_argument("--noise", choices=["vast"], default="", help="a banner and a .bashrc that prints")
    up.add_argument("--no-sftp", action="store_true")
    up.add_argument("--python", default="", metavar="3.8", help="the version that python3 is")
    up.add_argument("--shm", default="64m", metavar="SIZE", help="of /dev/shm (default: 64m)")
    up.add_argument("--noexec-home", action="store_true")
    up.add_argument("--cpus", type=float, default=0, metavar="N", help="a quota in cores")
    up.add_argument("--pids", type=int, default=0, metavar="N", help="at most so many processes and threads")
    up.add_argument("--memory", default="", metavar="SIZE", help="a limit, such as 256m")
    up.add_argument("--nat", default="", metavar="NAME", help="behind a gateway of this name")
    up.add_argument(
        "--overlay",
        action="append",
        default=[],
        metavar="wg0=NAME",
        help="another interface, and its network",
    )
    up.add_argument("--resolves", choices=["own", "loopback", "nothing"], default="own")
    up.add_argument("--gpus", type=int, default=0, metavar="N", help="fake ones")
    up.add_argument("--clock-offset", type=float, default=0, metavar="SECONDS")
    up.add_argument("--latency", type=float, default=0, metavar="MS", help="added to a round trip")
    up.add_argument("--loss", type=float, default=0, metavar="SHARE", help="0.02 loses 2 packets of 100")
    up.add_argument("--rate", type=float, default=0, metavar="MBIT", help="megabits a second")
    return parser
