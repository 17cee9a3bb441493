"""Findings about several hosts together: whether they fit into one run, and whether they reach each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .. import formatting as fmt
from .findings import BLOCKER, OK, WARNING, Finding, Subject, release
from .matrix import Matrix, Probe

SLOW_MBIT = 1000.0
"""At 1 Gbit/s the gradients of 100 million parameters (400 MB) take 3 s a step."""

FAR_MS = 5.0
"""Hosts in one place are well below 1 ms apart; a ring of collectives waits for the round trip many times."""

NO_WAY = (
    "Use hosts of one cluster with its overlay, put them into one VPN (interface in hosts.toml), or use one."
)


def look(subjects: Sequence[Subject], matrix: Matrix | None) -> Iterator[Finding]:
    """All of them, in an order that stays the same; none for a single host."""
    if len(subjects) > 1:
        yield from _machines(subjects)
        yield from _ranks(subjects)
        yield from _torch(subjects)
        yield from _gpus(subjects)
    if matrix is not None:
        yield from _network(matrix)


def best(matrix: Matrix, source: str, target: str) -> Probe | None:
    """The address by which `target` is reached best from `source`; one that failed when none is reached."""
    probes = [probe for probe in matrix.probes if (probe.source, probe.target) == (source, target)]
    return min(
        probes, key=lambda probe: (not probe.ok, -(probe.mbit or 0), probe.rtt_ms or 1e9), default=None
    )


def _machines(subjects: Sequence[Subject]) -> Iterator[Finding]:
    by_id: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.host_id:
            by_id.setdefault(subject.host_id, []).append(subject.name)
    for names in by_id.values():
        if len(names) > 1:
            text = f"{' and '.join(names)} are one machine"
            yield Finding("", "hosts", BLOCKER, text, "Name each machine once.")


def _ranks(subjects: Sequence[Subject]) -> Iterator[Finding]:
    ranks = {subject.name: subject.ranks for subject in subjects}
    if len(set(ranks.values())) > 1:
        yield Finding(
            "",
            "ranks",
            BLOCKER,
            f"not equally many ranks: {_said(ranks)}",
            f"Set nproc_per_node = {min(ranks.values())} in the profile's [run], or take other hosts.",
        )
    else:
        each = next(iter(ranks.values()))
        text = f"{fmt.plural(len(ranks), 'host')} with {fmt.plural(each, 'rank')} each"
        yield Finding("", "ranks", OK, text)


def _torch(subjects: Sequence[Subject]) -> Iterator[Finding]:
    pythons = {subject.name: subject.python for subject in subjects}
    torch = {name: python.torch for name, python in pythons.items() if python and python.torch}
    if len({release(version) for version in torch.values()}) > 1:
        fix = "Install the same release on all, or choose interpreters that have it: python in [run]."
        yield Finding("", "torch", BLOCKER, f"different releases of torch: {_said(torch)}", fix)
    cuda = {name: python.cuda or "none" for name, python in pythons.items() if python and python.torch}
    if len({release(version)[:1] for version in cuda.values()}) > 1:
        fix = "Install the same build on all: the NCCL that comes with it may not talk to the other."
        yield Finding("", "torch", WARNING, f"torch built for different CUDA: {_said(cuda)}", fix)


def _gpus(subjects: Sequence[Subject]) -> Iterator[Finding]:
    models = {
        subject.name: " and ".join(sorted({fmt.short_gpu_name(gpu.name) for gpu in subject.facts.gpu.gpus}))
        for subject in subjects
        if subject.facts.gpu.gpus
    }
    if len(set(models.values())) > 1:
        text = f"different GPUs: {_said(models)}"
        yield Finding("", "gpus", WARNING, text, "The slowest sets the pace, the smallest the batch.")
    drivers = {subject.name: subject.facts.gpu.driver for subject in subjects if subject.facts.gpu.driver}
    if len(set(drivers.values())) > 1:
        text = f"different drivers: {_said(drivers)}"
        yield Finding(
            "", "driver", WARNING, text, "It mostly works; take hosts that are alike if NCCL fails."
        )


def _network(matrix: Matrix) -> Iterator[Finding]:
    names = [host.name for host in matrix.hosts]
    ways = {(a, b): best(matrix, a, b) for a in names for b in names if a != b}
    missing: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (source, target), way in ways.items():
        if way is None or not way.ok:
            missing.setdefault((min(source, target), max(source, target)), []).append((source, target))
    for pairs in missing.values():
        source, target = pairs[0]
        way = ways[source, target]
        why = f"{way.address}: {way.error}" if way is not None else "it has no address to try"
        text = f"{source} does not reach {target}" + (", nor the other way" if len(pairs) > 1 else "")
        yield Finding("", "network", BLOCKER, f"{text} ({why})", NO_WAY)
    reached = {pair: way for pair, way in ways.items() if way is not None and way.ok}
    slow = {pair: way.mbit for pair, way in reached.items() if way.mbit is not None and way.mbit < SLOW_MBIT}
    if slow:
        (source, target), least = min(slow.items(), key=lambda item: item[1])
        text = f"{source} sends {gbit(least)} Gbit/s to {target}"
        more = f", {fmt.plural(len(slow) - 1, 'other way')} as slow" if len(slow) > 1 else ""
        fix = "Steps will wait for it: gather gradients over more steps, or take hosts that are closer."
        yield Finding("", "network", WARNING, text + more, fix)
    far = {
        pair: way.rtt_ms for pair, way in reached.items() if way.rtt_ms is not None and way.rtt_ms > FAR_MS
    }
    if far:
        (source, target), most = max(far.items(), key=lambda item: item[1])
        text = f"{source} and {target} are {most:.0f} ms apart"
        yield Finding(
            "", "network", WARNING, text, "Take hosts in one place: each collective waits for that."
        )
    if reached and not missing and not slow and not far:
        yield Finding("", "network", OK, f"every host reaches every other, {_worst(reached)}")


def _worst(ways: Mapping[tuple[str, str], Probe]) -> str:
    trips = [way.rtt_ms for way in ways.values() if way.rtt_ms is not None]
    rates = [way.mbit for way in ways.values() if way.mbit is not None]
    parts = [
        f"within {max(trips):.1f} ms" if trips else "",
        f"{gbit(min(rates))} Gbit/s at least" if rates else "",
    ]
    interfaces = sorted({way.interface for way in ways.values()})
    return ", ".join([*filter(None, parts), f"by {' and '.join(interfaces)}"])


def way_words(way: Probe | None) -> str:
    """One cell of the matrix: `0.2 ms 9.4 Gbit/s`, as far as it was measured."""
    if way is None or not way.ok:
        return "not reached"
    trip = "" if way.rtt_ms is None else f"{way.rtt_ms:.1f} ms"
    rate = "" if way.mbit is None else f"{gbit(way.mbit)} Gbit/s"
    return " ".join(filter(None, (trip, rate))) or "reached"


def gbit(mbit: float) -> str:
    """Megabits a second in gigabits: `9.4`, `0.12`."""
    return f"{mbit / 1000:.2f}" if mbit < 1000 else f"{mbit / 1000:.1f}"


def _said(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
