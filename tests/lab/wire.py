"""A slow or lossy cable, made of a process: it takes packets off one end and puts them on the other, later.

The kernel's own means for this, netem, is missing from many kernels. Where a host's cable ends at the bridge,
a tap device takes its place, and this program carries the Ethernet frames between the two. It ends with
its standard input, so with whoever started it, and the tap with it.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import fcntl
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .options import Cable

TUN = "/dev/net/tun"
QUEUE_SECONDS = 1.0
"""A limited rate holds so much back before it drops, as a router's buffer does."""

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x2, 0x1000
_SIOCETHTOOL, _SET_TX_CHECKSUMS = 0x8946, 0x17
_ETH_P_ALL, _SOL_PACKET, _PACKET_IGNORE_OUTGOING = 0x3, 263, 23


class Wire:
    """The process for one cable, from the port of a bridge to `eth0` of the namespace `peer`."""

    def __init__(
        self, namespace: str, port: str, peer: str, cable: Cable, refuse: Callable[[str], NoReturn]
    ) -> None:
        if not Path(TUN).exists():
            refuse(f"slow and lossy cables need {TUN}")
        self._namespace, self._port = namespace, port
        self._ip("link", "set", port, "nomaster")
        program = [sys.executable, "-S", __file__]
        subprocess.run(["ip", "netns", "exec", peer, *program, "eth0"], check=True)
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *program, port, "--tap", f"{port}w",
             "--latency-ms", str(cable.latency_ms), "--loss", str(cable.loss),
             "--rate-mbit", str(cable.rate_mbit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.read(1), "the cable's process did not start"
        self._ip("link", "set", f"{port}w", "master", "br0", "up")

    def release(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the process and connect the port to the bridge again."""
        self.release()
        self._ip("link", "set", self._port, "master", "br0")

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", "-netns", self._namespace, *words], check=True)


class Way:
    """One direction: frames that are still on their way, in order."""

    def __init__(self, write: Callable[[bytes], object], delay: float, loss: float, rate: float) -> None:
        self._write = write
        self._delay = delay
        self._loss = loss
        self._rate = rate
        """Bytes a second, or 0."""
        self._sent = 0.0
        """When the last frame will have left its sender."""
        self._frames: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self, frame: bytes, now: float) -> None:
        """Let a frame enter, or lose it."""
        if random.random() < self._loss:
            return
        if self._rate:
            if self._sent - now > QUEUE_SECONDS:
                return
            self._sent = max(now, self._sent) + len(frame) / self._rate
        self._frames.append((max(now, self._sent) + self._delay, frame))

    def deliver(self, now: float) -> float:
        """Let out what is due, and return in how many seconds the next frame is, at most a minute."""
        while self._frames:
            due, frame = self._frames[0]
            if due > now:
                return min(due - now, 60)
            self._frames.popleft()
            try:
                self._write(frame)
            except OSError:
                pass  # the cable is out, or the receiver has no room: lost, as on any cable
        return 60


def carry(port: socket.socket, tap: int, delay: float, loss: float, rate: float) -> None:
    """Carry frames both ways until standard input ends."""
    up = Way(lambda frame: os.write(tap, frame), delay, loss, rate)
    down = Way(port.send, delay, loss, rate)
    while True:
        now = time.monotonic()
        wait = min(up.deliver(now), down.deliver(now))
        ready, _, _ = select.select([0, port.fileno(), tap], [], [], wait)
        if 0 in ready:
            return
        now = time.monotonic()
        for source, take in ((port.fileno(), up.take), (tap, down.take)):
            if source not in ready:
                continue
            try:
                for _ in range(64):
                    take(os.read(source, 65536), now)
            except OSError:
                pass  # no more for now, or the cable is out


def whole_frames(interface: str) -> None:
    """Let the kernel finish each packet of an interface, not leave that to hardware that is not there."""
    setting = ctypes.create_string_buffer(struct.pack("II", _SET_TX_CHECKSUMS, 0))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(setting))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port")
    parser.add_argument("--tap")
    for name in ("--latency-ms", "--loss", "--rate-mbit"):
        parser.add_argument(name, type=float, default=0)
    options = parser.parse_args()
    if options.tap is None:
        whole_frames(options.port)
        return
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", options.tap.encode(), _IFF_TAP | _IFF_NO_PI))
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.bind((options.port, 0))
    port.setblocking(False)
    os.write(1, b".")
    carry(port, tap, options.latency_ms / 2000, options.loss, options.rate_mbit * 1e6 / 8)


if __name__ == "__main__":
    main()
