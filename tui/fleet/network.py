"""Who reaches whom: measured between all hosts of a launch, as training will use the network.

NCCL and gloo listen on ports that the kernel chooses, at the first address of an interface, and tell the
others that address. So every host listens so at each address that comes into question, and every other one
tries them all at once. What is at the far end proves that it is the host that is meant: private addresses
are the same behind every NAT.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Optional

from agent import wire

from .candidates import Described, candidates
from .errors import HostError, RequestRefused
from .matrix import Candidate, HostNetwork, Matrix, Probe
from .parallel import everywhere
from .sanitize import printable
from .session import Session

LISTEN_SECONDS = 25.0
"""Listeners are ended when they are not needed any more; this is for when we are gone."""

FLOOD_SECONDS, ALL_FLOODS_SECONDS = 0.5, 8.0
"""How long one host sends to another to measure the throughput, and how long all rounds may take."""

MAX_FLOODED = 2
"""Addresses of a host whose throughput is measured, of those that were reached."""

PORT_TRIES = 5
"""Ports out of a configured range that are tried until one is free."""

UNLISTEN_SECONDS = 5.0


async def measure(
    sessions: Sequence[Session],
    *,
    throughput: bool = False,
    interface: str = "",
    rendezvous_host: str = "",
    rendezvous_port: int = 0,
) -> Matrix:
    """Let every host try every other one. `interface` is for those for which hosts.toml has none.

    The rendezvous host is the first unless another is named; a `rendezvous_port` is tried there. Takes a few
    round trips when all is well, some seconds longer when something does not answer, and for the throughput
    half a second for each host. Raises HostsFailed, and UsageError for an interface that a host has not got.
    """
    lead = rendezvous_host or sessions[0].name
    found = (await everywhere(sessions, lambda session: _describe(session, interface))).results()
    ranks = {
        name: _Wanted([(each, each.address) for each in host.candidates]) for name, host in found.items()
    }
    meeting = {name: _meeting(host, rendezvous_port * (name == lead)) for name, host in found.items()}
    async with _listening(sessions, ranks) as listeners, _listening(sessions, meeting) as meeting_places:
        pairs = [(one.name, other) for one in sessions for other in listeners if other.host != one.name]
        places = [(session.name, place) for session in sessions for place in meeting_places]
        tried = await _try(sessions, [*pairs, *places])
    probes, met = tried[: len(pairs)], tried[len(pairs) :]
    if throughput:
        probes = await _flood(sessions, found, probes)
    problems = {place.host: place.error for place in meeting_places}
    hosts = (dataclasses.replace(found[each], rendezvous_error=problems.get(each, "")) for each in found)
    return Matrix(tuple(hosts), tuple(probes), tuple(met))


async def _describe(session: Session, interface: str) -> HostNetwork:
    try:
        answer = wire.from_json(Described, await session.request("network", {}), "network")
        low, high = answer.local_ports
        for each in answer.interfaces:
            ipaddress.ip_interface(f"{each.address}/{each.prefix}")
    except ValueError:  # WireError is one
        raise _senseless(session) from None
    host, hello = session.host, session.view.hello
    return HostNetwork(
        session.name,
        hello.host_id if hello else "",
        hello.boot_id if hello else "",
        candidates(session.name, answer, host.interface or interface, host.peer_address),
        (low, high),
        host.peer_address,
        host.ports,
    )


def _meeting(host: HostNetwork, port: int) -> _Wanted:
    """Where to listen for the rendezvous; nowhere when that is the same as for the ranks."""
    if not host.candidates or not (port or host.ports or host.peer_address):
        return _Wanted([])
    ports = [port]
    if host.ports and not port:
        low, high = host.ports
        ports = random.sample(range(low, high + 1), min(PORT_TRIES, high - low + 1))
    if host.peer_address is None:
        return _Wanted([(each, each.address) for each in host.candidates], ports)
    # An address that is not its own leads, by all experience, to where its default route begins.
    own = [each for each in host.candidates if each.address == host.peer_address]
    return _Wanted([((own or list(host.candidates))[0], host.peer_address)], ports)


# --- listening and trying -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    """Candidates at which a host is to listen, each with the address to be tried, all at the same port.

    The first of `ports` that is free at all of them is taken; 0 is one that the kernel chooses for each.
    """

    places: list[tuple[Candidate, str]]
    ports: list[int] = dataclasses.field(default_factory=lambda: [0])


@dataclass
class _Listener:
    host: str
    candidate: Candidate
    address: str
    port: int
    token: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    error: str = ""


@asynccontextmanager
async def _listening(
    sessions: Sequence[Session], wanted: Mapping[str, _Wanted]
) -> AsyncIterator[list[_Listener]]:
    """Listen on all hosts; one that cannot has an `error`. Raises HostsFailed."""
    here = [session for session in sessions if wanted[session.name].places]
    listeners: list[_Listener] = []
    try:
        (await everywhere(here, lambda session: _listen(session, wanted[session.name], listeners))).results()
        yield listeners
    finally:
        await everywhere(here, lambda session: _unlisten(session, listeners))


async def _listen(session: Session, wanted: _Wanted, listeners: list[_Listener]) -> None:
    for port in wanted.ports:
        these = [_Listener(session.name, each, address, port) for each, address in wanted.places]
        listeners += these
        await asyncio.gather(*(_open(session, each) for each in these))
        if not any(each.error for each in these) or port == wanted.ports[-1]:
            return
        await _unlisten(session, these)
        for each in these:
            listeners.remove(each)


async def _open(session: Session, listener: _Listener) -> None:
    params = {
        "token": listener.token,
        "address": listener.candidate.address,
        "port": listener.port,
        "seconds": LISTEN_SECONDS,
    }
    try:
        answer = await session.request("listen", params)
    except RequestRefused as error:
        listener.error = f"it cannot listen there: {printable(error.message)}"
        return
    port = answer.get("port")
    if type(port) is not int or not 0 < port < 65536:
        raise _senseless(session)
    listener.port = port


async def _unlisten(session: Session, listeners: Iterable[_Listener]) -> None:
    tokens = [each.token for each in listeners if each.host == session.name]
    await session.request("unlisten", {"tokens": tokens}, UNLISTEN_SECONDS)


@dataclass(frozen=True)
class _Outcome:
    ok: bool
    error: str
    rtt_ms: Optional[float] = None  # noqa: UP045
    mbit: Optional[float] = None  # noqa: UP045


@dataclass(frozen=True)
class _Outcomes:
    peers: tuple[_Outcome, ...]


async def _try(
    sessions: Sequence[Session], pairs: Sequence[tuple[str, _Listener]], seconds: float = 0.0
) -> list[Probe]:
    """What came of all pairs of a source and a listener, in their order. Raises HostsFailed."""

    async def ask(session: Session) -> list[_Outcome]:
        mine = [each for source, each in pairs if source == session.name and not each.error]
        peers = [
            {"name": each.host, "address": each.address, "port": each.port, "token": each.token}
            for each in mine
        ]
        if not peers:
            return []
        try:
            params = {"peers": peers, "throughput_seconds": seconds}
            outcomes = wire.from_json(_Outcomes, await session.request("probe_peers", params)).peers
        except wire.WireError:
            outcomes = ()
        if len(outcomes) != len(mine):
            raise _senseless(session)
        return list(outcomes)

    answers = {name: iter(found) for name, found in (await everywhere(sessions, ask)).results().items()}
    probes = []
    for source, each in pairs:
        outcome = _Outcome(False, each.error) if each.error else next(answers[source])
        error = "" if outcome.ok else printable(outcome.error)[:200] or "no reason given"
        probes.append(
            Probe(
                source, each.host, each.candidate.interface, each.address, each.port,
                outcome.ok, error, outcome.rtt_ms, outcome.mbit,
            )
        )  # fmt: skip
    return probes


async def _flood(
    sessions: Sequence[Session], hosts: Mapping[str, HostNetwork], probes: Sequence[Probe]
) -> list[Probe]:
    """The probes with throughput: in each round every host sends to one other, and no two to the same."""
    reached = {
        (each.source, each.target, each.address): number for number, each in enumerate(probes) if each.ok
    }
    names = [session.name for session in sessions]
    rounds = []
    for shift in range(1, len(names)):
        turns = [(name, names[(number + shift) % len(names)]) for number, name in enumerate(names)]
        for which in range(MAX_FLOODED):
            now = []
            for source, target in turns:
                there = [
                    each for each in hosts[target].candidates if (source, target, each.address) in reached
                ]
                now += [(source, target, each) for each in there[which : which + 1]]
            if now:
                rounds.append(now)
    measured = list(probes)
    for now in rounds:
        wanted = {name: _Wanted([]) for name in names}
        wanted |= {target: _Wanted([(each, each.address)]) for _, target, each in now}
        async with _listening(sessions, wanted) as listeners:
            sources = {target: source for source, target, _ in now}
            pairs = [(sources[each.host], each) for each in listeners]
            for probe in await _try(sessions, pairs, min(FLOOD_SECONDS, ALL_FLOODS_SECONDS / len(rounds))):
                number = reached[probe.source, probe.target, probe.address]
                measured[number] = dataclasses.replace(measured[number], mbit=probe.mbit)
    return measured


def _senseless(session: Session) -> HostError:
    return HostError(
        f"The agent on {session.name} answers in a way that makes no sense.",
        "Use the same version of encamp on all machines from which you look at this host.",
    )
