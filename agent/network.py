"""The network as training will use it: interfaces and addresses, and whether others are reached from here.

Ranks listen on ports that the kernel chooses, at the address of one interface; so does a listener here. It
tells who knows its token that it is the right one, and serves nobody else. All of it runs in a thread with a
loop of its own: whatever the network does, telemetry goes on.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import os
import socket
import statistics
import struct
import threading
import time
from typing import Any, Coroutine, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

from .errors import RunError

LISTEN_SECONDS = 30.0
CONNECT_SECONDS = 4.0
"""For a connection, and again for the first answer: time to repeat a lost packet twice."""

ECHOES, ENOUGH_MS = 5, 200
"""At most so many echoes, and none after so many milliseconds: on a long way each says the same."""
ECHO_SECONDS = 3.0
"""For all echoes together; of those that came in time the median counts."""

MAX_LISTENERS, MAX_GUESTS, MAX_PEERS, MAX_ADDRESSES = 64, 128, 512, 128
MAX_FLOOD_SECONDS, MAX_FLOOD_BYTES = 5.0, 8 << 30
MIN_TOKEN, MAX_TOKEN = 32, 128
"""Characters; of hexadecimal digits the shortest has 16 bytes."""

_CHUNK = bytes(1 << 18)
_NUMBER = struct.Struct("!d")
"""What is said after the greeting. From the guest: seconds of data that will follow, or 0 for an echo."""

_TUNNELS = ("tun", "wireguard", "gre", "ipip", "sit", "ip6tnl", "vti", "vxlan", "geneve", "xfrm")
_BRIDGES = ("bridge", "openvswitch")
_ETHERNET, _INFINIBAND, _NO_HARDWARE = 1, 32, (768, 769, 776, 778, 65534)
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40

T = TypeVar("T")


class Peer(NamedTuple):
    """A listener on another host."""

    name: str
    address: str
    port: int
    token: str


# --- what there is ------------------------------------------------------------------------------------------


def describe() -> Dict[str, Any]:
    """Addresses of all interfaces but loopback, the default route's interface, the ports the kernel gives."""
    links = {}
    for head, fields in _dump(18, 16):
        _, kind, index, flags = struct.unpack_from("=BxHiI", head)
        links[index] = (kind, flags, fields)
    found: List[Dict[str, Any]] = []
    for head, fields in _dump(22, 8):
        family, prefix, _, _, index = struct.unpack_from("=BBBBI", head)
        kind, flags, link = links.get(index, (0, _LOOPBACK, {}))
        address = fields.get(2) or fields.get(1)  # own address; at the end of a tunnel 1 is the other end's
        if flags & _LOOPBACK or not address or family not in (socket.AF_INET, socket.AF_INET6):
            continue
        name = link.get(3, b"").rstrip(b"\0").decode("utf-8", "replace")
        found.append(
            {
                "name": name,
                "address": socket.inet_ntop(family, address),
                "family": 4 if family == socket.AF_INET else 6,
                "prefix": prefix,
                "mtu": struct.unpack("=I", link[4])[0] if 4 in link else None,
                "speed_mbit": _speed(name),
                "up": flags & (_UP | _RUNNING) == _UP | _RUNNING,
                "kind": _kind(kind, dict(_attributes(link.get(18, b""))).get(1, b"")),
            }
        )
    low, high = (int(word) for word in _text("/proc/sys/net/ipv4/ip_local_port_range").split())
    return {
        "interfaces": found[:MAX_ADDRESSES],
        "default_interface": _default_interface(),
        "local_ports": [low, high],
    }


def _dump(request: int, size: int) -> Iterator[Tuple[bytes, Dict[int, bytes]]]:
    """Ask the kernel (rtnetlink) for a list: the head of each entry, of `size` bytes, and its attributes."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(5)
        sock.send(struct.pack("=IHHII", 16 + size, request, 0x301, 1, 0) + bytes(size))
        while True:
            data = sock.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind == 3 or length < 16:
                    return
                if kind == 2:
                    code = -struct.unpack_from("=i", data, 16)[0]
                    raise OSError(code, os.strerror(code))
                yield data[16 : 16 + size], dict(_attributes(data[16 + size : length]))
                data = data[length + 3 & ~3 :]


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[length + 3 & ~3 :]


def _kind(hardware: int, driver: bytes) -> str:
    name = driver.rstrip(b"\0").decode("ascii", "replace")
    if name in _BRIDGES:
        return "bridge"
    if name in _TUNNELS or hardware in _NO_HARDWARE:
        return "tunnel"
    return {_ETHERNET: "ethernet", _INFINIBAND: "infiniband"}.get(hardware, "other")


def _speed(name: str) -> Optional[int]:
    try:
        speed = int(_text(f"/sys/class/net/{name}/speed"))
    except (OSError, ValueError):
        return None  # what is no hardware has none
    return speed if speed > 0 else None


def _default_interface() -> Optional[str]:
    routes = [line.split() for line in _text("/proc/net/route").splitlines()[1:]]
    default = [
        (int(words[6]), words[0]) for words in routes if len(words) > 7 and words[1] == words[7] == "0" * 8
    ]
    return min(default)[1] if default else None


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


# --- who is reached -----------------------------------------------------------------------------------------


class Meter:
    """Listeners, and attempts to reach those of others, in a thread that begins when it is first needed."""

    def __init__(self) -> None:
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._listeners: Dict[str, asyncio.Task[None]] = {}

    async def listen(self, token: str, address: str, port: int, seconds: float) -> int:
        """Serve who knows the token for `seconds`, and return the port. Raises OSError, RunError."""
        return await self._do(self._listen(token, address, port, min(seconds, LISTEN_SECONDS)))

    async def unlisten(self, tokens: Tuple[str, ...]) -> None:
        """End listeners; when this returns their ports are free."""
        await self._do(self._unlisten(tokens))

    async def probe(self, peers: List[Peer], flood_seconds: float) -> List[Dict[str, Any]]:
        """Try all peers at once, and send to those that are reached for `flood_seconds`."""
        return list(await self._do(_probe_all(peers, min(flood_seconds, MAX_FLOOD_SECONDS))))

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="network", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _listen(self, token: str, address: str, port: int, seconds: float) -> int:
        if len(self._listeners) >= MAX_LISTENERS or token in self._listeners:
            raise RunError("busy", "there are too many listeners on this host", "try again in half a minute")
        sock = socket.socket(_family(address))
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen(MAX_GUESTS)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        loop = asyncio.get_event_loop()
        task = self._listeners[token] = loop.create_task(_receive(sock, token))
        task.add_done_callback(lambda _: self._listeners.pop(token, None))
        loop.call_later(seconds, task.cancel)
        return int(sock.getsockname()[1])

    async def _unlisten(self, tokens: Tuple[str, ...]) -> None:
        tasks = [task for task in map(self._listeners.get, tokens) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _sign(token: str, side: bytes) -> bytes:
    """What shows that one knows the token. The sides differ, so that an echo proves nothing."""
    return hashlib.sha256(side + token.encode()).digest()


async def _receive(sock: socket.socket, token: str) -> None:
    """Take in guests until cancelled."""
    loop = asyncio.get_event_loop()
    guests: Dict[asyncio.Task[None], None] = {}
    try:
        while True:
            guest, _ = await loop.sock_accept(sock)
            if len(guests) >= MAX_GUESTS:
                guest.close()
                continue
            task = loop.create_task(_serve(guest, token))
            guests[task] = None
            task.add_done_callback(guests.pop)
    except OSError:
        pass  # no more files: who was not served tells that it was not
    finally:
        sock.close()
        for task in list(guests):
            task.cancel()


async def _serve(guest: socket.socket, token: str) -> None:
    loop = asyncio.get_event_loop()
    try:
        _prepare(guest)
        if not hmac.compare_digest(await _exactly(guest, 32), _sign(token, b"guest")):
            return
        await loop.sock_sendall(guest, _sign(token, b"host"))
        for _ in range(ECHOES + 1):
            said = await _exactly(guest, _NUMBER.size, MAX_FLOOD_SECONDS + ECHO_SECONDS)
            seconds = _NUMBER.unpack(said)[0]
            flood = 0 < seconds <= MAX_FLOOD_SECONDS
            if flood:
                said = _NUMBER.pack(await _drain(guest, seconds))
            await loop.sock_sendall(guest, said)
            if flood:
                break
        await _drain(guest, CONNECT_SECONDS)  # what is still coming; the guest is to hang up first
    except (OSError, EOFError, asyncio.TimeoutError):
        pass  # it went away
    finally:
        guest.close()


async def _drain(guest: socket.socket, seconds: float) -> float:
    """Bytes a second that come within `seconds`."""
    loop = asyncio.get_event_loop()
    buffer = bytearray(1 << 20)
    start = time.monotonic()
    count, passed = 0, 0.0

    async def take() -> None:
        nonlocal count, passed
        while passed < seconds and count < MAX_FLOOD_BYTES:
            got = await loop.sock_recv_into(guest, buffer)
            if not got:
                raise EOFError
            count, passed = count + got, time.monotonic() - start
            await asyncio.sleep(0)

    try:
        await asyncio.wait_for(take(), seconds)
    except asyncio.TimeoutError:
        passed = seconds
    return count / passed if passed else 0.0


async def _probe_all(peers: List[Peer], flood_seconds: float) -> List[Dict[str, Any]]:
    return await asyncio.gather(*(_probe(peer, flood_seconds) for peer in peers))


async def _probe(peer: Peer, flood_seconds: float) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "name": peer.name, "address": peer.address, "port": peer.port,
        "ok": False, "error": "", "rtt_ms": None, "mbit": None,
    }  # fmt: skip
    loop = asyncio.get_event_loop()
    sock = socket.socket(_family(peer.address))
    try:
        _prepare(sock)
        await asyncio.wait_for(loop.sock_connect(sock, (peer.address, peer.port)), CONNECT_SECONDS)
        await loop.sock_sendall(sock, _sign(peer.token, b"guest"))
        if not hmac.compare_digest(await _exactly(sock, 32), _sign(peer.token, b"host")):
            raise EOFError
        result["ok"] = True
        result["rtt_ms"] = await _round_trip(sock)
        if flood_seconds > 0:
            result["mbit"] = await _flood(sock, flood_seconds)
    except asyncio.TimeoutError:
        result["error"] = os.strerror(errno.ETIMEDOUT).lower()
    except OSError as error:
        result["error"] = (os.strerror(error.errno) if error.errno else str(error)).lower()
    except EOFError:
        result["error"] = "something else answers there"
    finally:
        # At once: what is still on its way, on a slow line, is of no use to anybody.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    if result["ok"]:
        result["error"] = ""
    return result


async def _round_trip(sock: socket.socket) -> Optional[float]:
    """Milliseconds."""
    times: List[float] = []

    async def echo() -> None:
        while len(times) < ECHOES and sum(times) < ENOUGH_MS:
            start = time.perf_counter()
            await asyncio.get_event_loop().sock_sendall(sock, _NUMBER.pack(0))
            await _exactly(sock, _NUMBER.size)
            times.append((time.perf_counter() - start) * 1000)

    try:
        await asyncio.wait_for(echo(), ECHO_SECONDS)
    except asyncio.TimeoutError:
        pass
    return round(statistics.median(times), 3) if times else None


async def _flood(sock: socket.socket, seconds: float) -> float:
    """Megabits a second that arrive."""
    loop = asyncio.get_event_loop()
    await loop.sock_sendall(sock, _NUMBER.pack(seconds))
    end = time.monotonic() + seconds

    async def pour() -> None:
        while time.monotonic() < end:
            await loop.sock_sendall(sock, _CHUNK)
            await asyncio.sleep(0)

    try:
        await asyncio.wait_for(pour(), seconds)
    except asyncio.TimeoutError:
        pass
    return round(float(_NUMBER.unpack(await _exactly(sock, _NUMBER.size))[0]) * 8e-6, 1)


async def _exactly(sock: socket.socket, size: int, seconds: float = CONNECT_SECONDS) -> bytes:
    """So many bytes. Raises EOFError, OSError, asyncio.TimeoutError."""
    loop = asyncio.get_event_loop()
    data = b""

    async def read() -> bytes:
        nonlocal data
        while len(data) < size:
            more = await loop.sock_recv(sock, size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    return await asyncio.wait_for(read(), seconds)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
