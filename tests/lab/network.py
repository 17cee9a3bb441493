"""The lab's network: a switch in a namespace of its own, a cable to the controller, gateways that do NAT.

Nothing of it touches the machine's own interfaces: the only thing outside of the lab's namespaces is one
interface with an address of a free 10.x subnet, by which the controller reaches the switch.
"""

from __future__ import annotations

import ipaddress
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .names import LabName, machine_lock
from .tools import run

BRIDGE = "br0"
PRIVATE = ipaddress.IPv4Network("172.17.0.0/16")
"""What is behind each gateway, as behind each Docker."""

OVERLAYS = ipaddress.IPv4Network("192.168.0.0/16")
"""Each overlay is a /24 of it."""

FIRST_MAPPED_PORT = 40022


class Segment:
    """A bridge in a namespace, with a port for each host; addresses are given out in order."""

    def __init__(self, namespace: str, subnet: ipaddress.IPv4Network) -> None:
        self.namespace = namespace
        self.subnet = subnet
        self._free = (str(subnet[number]) for number in range(2, 250))

    def new_address(self) -> str:
        """The next address; the first of the subnet is the controller's or the gateway's."""
        return next(self._free)

    def create(self) -> None:
        """Make the namespace and the bridge."""
        run("ip", "netns", "add", self.namespace)
        quiet(self.namespace)
        run("ip", "-netns", self.namespace, "link", "add", BRIDGE, "type", "bridge")
        run("ip", "-netns", self.namespace, "link", "set", BRIDGE, "up")

    def attach(
        self, port: str, peer: str, address: str, *, router: str = "", interface: str = "eth0"
    ) -> None:
        """Lead a cable from `port` to an interface of the namespace `peer`."""
        run(
            "ip", "-netns", self.namespace, "link", "add", port, "type", "veth",
            "peer", "name", interface, "address", hardware_address(address), "netns", peer,
        )  # fmt: skip
        run("ip", "-netns", self.namespace, "link", "set", port, "master", BRIDGE, "up")
        run("ip", "-netns", peer, "address", "add", f"{address}/{self.subnet.prefixlen}", "dev", interface)
        run("ip", "-netns", peer, "link", "set", "lo", "up")
        run("ip", "-netns", peer, "link", "set", interface, "up")
        if router:
            run("ip", "-netns", peer, "route", "add", "default", "via", router)


@dataclass
class Gateway:
    """A router with one address on the switch, and hosts behind it that nobody outside reaches uninvited."""

    inside: Segment
    address: str
    mappings: dict[int, str] = field(default_factory=dict)
    """Port -> the private address to whose port 22 it leads."""

    @property
    def router(self) -> str:
        """The hosts' default route."""
        return str(PRIVATE[1])

    def create(self, switch: Segment, port: str) -> None:
        """Make it and connect it to the switch."""
        self.inside.create()
        namespace = self.inside.namespace
        switch.attach(port, namespace, self.address)
        run("ip", "-netns", namespace, "address", "add", f"{self.router}/16", "dev", BRIDGE)
        # An address is answered for only where it is: a cable taken off the bridge leads nowhere else.
        set_kernel(namespace, "net.ipv4.ip_forward=1", "net.ipv4.conf.all.arp_ignore=1")

    def map_port(self, address: str) -> int:
        """Let a new port lead to SSH of a host, and return it."""
        port = FIRST_MAPPED_PORT + len(self.mappings)
        self.mappings[port] = address
        rules = "\n".join(
            f"iifname eth0 tcp dport {port} dnat to {target}:22" for port, target in self.mappings.items()
        )
        nft(
            self.inside.namespace,
            f"""
            table ip nat
            delete table ip nat
            table ip nat {{
                chain in {{
                    type nat hook prerouting priority -100
                    {rules}
                    iifname {BRIDGE} udp dport 53 redirect comment "refused: a lookup need not time out"
                }}
                chain out {{
                    type nat hook postrouting priority 100
                    oifname eth0 masquerade
                }}
                chain through {{
                    type filter hook forward priority 0
                    ct status dnat accept
                    iifname eth0 ct state new drop
                }}
            }}
            """,
        )
        return port


class Network:
    """The switch of one lab, the controller's cable to it, and the gateways."""

    def __init__(self, lab: LabName) -> None:
        self.lab = lab
        self.switch: Segment
        self.controller = ""
        """The controller's address in the lab."""
        self._gateways: dict[str, Gateway] = {}
        self._overlays: dict[str, Segment] = {}
        self._cuts: set[frozenset[str]] = set()

    def create(self) -> None:
        """Make the switch on a subnet that nobody uses."""
        with machine_lock():
            subnet = _free_subnet()
            self.switch = Segment(f"{self.lab}-switch", subnet)
            self.switch.create()
            self.controller = str(subnet[1])
            interface = self.lab.interface
            run(
                "ip", "link", "add", interface, "type", "veth",
                "peer", "name", "controller", "netns", self.switch.namespace,
            )  # fmt: skip
            run("ip", "-netns", self.switch.namespace, "link", "set", "controller", "master", BRIDGE, "up")
            run("ip", "address", "add", f"{self.controller}/{subnet.prefixlen}", "dev", interface)
            run("ip", "link", "set", interface, "up")

    def gateway(self, name: str) -> Gateway:
        """The gateway of that name, made when it is asked for first."""
        if name not in self._gateways:
            inside = Segment(f"{self.lab}-gw-{name}", PRIVATE)
            gateway = Gateway(inside, self.switch.new_address())
            gateway.create(self.switch, f"gw{len(self._gateways)}")
            self._gateways[name] = gateway
        return self._gateways[name]

    def overlay(self, name: str) -> Segment:
        """The overlay network of that name, made when it is asked for first."""
        if name not in self._overlays:
            subnet = list(OVERLAYS.subnets(new_prefix=24))[100 + len(self._overlays)]
            self._overlays[name] = Segment(f"{self.lab}-ov-{name}", subnet)
            self._overlays[name].create()
        return self._overlays[name]

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two addresses any more, in silence."""
        self._cuts.add(frozenset((one, other)))
        self._write_cuts()

    def mend(self, chosen: Callable[[frozenset[str]], bool]) -> None:
        """Undo the cuts that `chosen` chooses by their two addresses."""
        self._cuts = {pair for pair in self._cuts if not chosen(pair)}
        self._write_cuts()

    def _write_cuts(self) -> None:
        rules = []
        for pair in self._cuts:
            one, other = sorted(pair)
            rules += [f"ip saddr {one} ip daddr {other} drop", f"ip saddr {other} ip daddr {one} drop"]
        body = "\n".join(["type filter hook forward priority 0", *rules])
        table = "table bridge cuts"
        nft(self.switch.namespace, f"{table}\ndelete {table}\n{table} {{\nchain forward {{\n{body}\n}}\n}}\n")


def hardware_address(address: str) -> str:
    """The same for an address each time, so that a machine that was started again is still found."""
    return "02:ec:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def nft(namespace: str, rules: str) -> None:
    """Load rules in a namespace."""
    run("ip", "netns", "exec", namespace, "nft", "-f", "-", stdin=rules)


def firewall(namespace: str, ports: tuple[int, int]) -> None:
    """Let nothing in by `eth0` but SSH, and what goes to the ports from the first to the last."""
    nft(
        namespace,
        f"""
        table ip firewall {{
            chain in {{
                type filter hook input priority 0
                iifname eth0 tcp dport != {{ 22, {ports[0]}-{ports[1]} }} ct state new drop
            }}
        }}
        """,
    )


def set_kernel(namespace: str, *settings: str) -> None:
    """Set network settings of a namespace."""
    run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", *settings)


def quiet(namespace: str) -> None:
    """No IPv6, which would chatter and wait for its addresses to be checked."""
    set_kernel(namespace, "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")


def _free_subnet() -> ipaddress.IPv4Network:
    used = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in json.loads(run("ip", "-4", "-json", "route", "show", "table", "all") or "[]")
        if route["dst"] != "default"
    ]
    while True:
        subnet = ipaddress.IPv4Network(f"10.{random.randrange(64, 256)}.{random.randrange(256)}.0/24")
        if not any(subnet.overlaps(other) for other in used):
            return subnet
