"""Which ranks wait for which: read from torch's flight record, and from the stacks where there is none."""

from __future__ import annotations

import dataclasses
import re
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from . import places
from .evidence import Collective, Group, Rank

PEER = re.compile(r":(send|recv) (\d+)(?:->|<-)(\d+)")

SAME_SHAPE = re.compile(r"all_?reduce|broadcast|(?<!scatter_)reduce\Z|all_?gather|reduce_scatter")
"""Collectives whose input is of one size on all ranks."""


@dataclasses.dataclass(frozen=True)
class Wait:
    """A rank waits in a collective for `others`; empty when all have called it and it does not end."""

    rank: int
    group: str
    collective: str
    """What people call it: `all_reduce of 10x20 float, the 6th of default_pg`."""
    others: FrozenSet[int]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """At one point of a group's order ranks called different things."""

    group: str
    sequence: int
    calls: Mapping[str, Tuple[int, ...]]
    """What was called -> by whom."""


def members(group: Group, name: str, ranks: Sequence[Rank]) -> Set[int]:
    """The ranks of a group; where that is not recorded, those that know it, and for the first one all."""
    if group.ranks:
        return set(group.ranks)
    known = {rank.rank for rank in ranks if any(other.name == name for other in rank.groups)}
    return known if known and name != "0" else {rank.rank for rank in ranks}


def waits(ranks: Sequence[Rank]) -> List[Wait]:
    """What the flight records say. Ranks that wait for nothing, or have no record, are not among them."""
    enqueued: Dict[str, Dict[int, int]] = {}
    for rank in ranks:
        for group in rank.groups:
            enqueued.setdefault(group.name, {})[rank.rank] = group.enqueued
    recorded = {rank.rank for rank in ranks if rank.recorded}
    found = []
    for rank in ranks:
        for group in rank.groups:
            pending = pending_of(group)
            if group.completed >= group.enqueued and pending is None:
                continue
            sequence = pending.sequence if pending is not None else group.enqueued
            peer = _peer(pending, rank.rank, group)
            there = enqueued[group.name]
            others = {
                other
                for other in members(group, group.name, ranks) - {rank.rank}
                # Who keeps a record and has none of this group has not called anything in it.
                if there.get(other, 0 if other in recorded else sequence) < sequence
            }
            if peer is not None:
                others = {peer}
            found.append(Wait(rank.rank, group.name, words(pending, group), frozenset(others)))
    return found


def pending_of(group: Group) -> Optional[Collective]:
    """The oldest collective that is not over."""
    return next((entry for entry in group.recent if not entry.retired), None)


def words(entry: Optional[Collective], group: Group) -> str:
    """A collective for people."""
    where = group.description or f"group {group.name}"
    if entry is None:
        return f"collective {group.enqueued} of {where}"
    name = entry.name.rsplit(":", 1)[-1]
    of = f" of {entry.shape}" if entry.shape else ""
    return f"{name}{of}, number {entry.sequence} of {where}"


def _peer(entry: Optional[Collective], rank: int, group: Group) -> Optional[int]:
    match = PEER.search(entry.name) if entry is not None else None
    if match is None:
        return None
    ends = [int(match[2]), int(match[3])]
    if group.ranks:
        ends = [group.ranks[end] for end in ends if end < len(group.ranks)]
    return next((end for end in ends if end != rank), None)


def to_blame(found: Sequence[Wait]) -> Set[int]:
    """The ranks that are waited for and wait for nobody themselves."""
    waiting = {wait.rank for wait in found if wait.others}
    wanted = {other for wait in found for other in wait.others}
    return wanted - waiting


def cycle(found: Sequence[Wait]) -> Set[int]:
    """The ranks that wait for each other, where nobody else is to blame."""
    waiting = {wait.rank for wait in found if wait.others}
    wanted = {other for wait in found for other in wait.others}
    return waiting & wanted if wanted and not wanted - waiting else set()


def by_stacks(ranks: Sequence[Rank]) -> Tuple[Set[int], Set[int]]:
    """(Those in a collective, those that do something else), of the ranks whose stacks are known."""
    waiting: Set[int] = set()
    elsewhere: Set[int] = set()
    for rank in ranks:
        stack = places.main_stack(rank)
        if not stack:
            continue
        idle = not rank.main_cpu_share or rank.main_cpu_share < places.IDLE_SHARE
        inside = places.in_collective(stack) or (places.in_backward(stack) and idle)
        (waiting if inside else elsewhere).add(rank.rank)
    return waiting, elsewhere


def mismatch(ranks: Sequence[Rank]) -> Optional[Mismatch]:
    """The first point at which members of a group that wait in it called different things."""
    calls: Dict[Tuple[str, int], Dict[str, List[int]]] = {}
    waiting = {(rank.rank, group.name) for rank in ranks for group in rank.groups if pending_of(group)}
    for rank in ranks:
        for group in rank.groups:
            for entry in group.recent:
                if (rank.rank, group.name) in waiting and not PEER.search(entry.name):
                    key = (group.name, entry.sequence)
                    calls.setdefault(key, {}).setdefault(_call(entry), []).append(rank.rank)
    for (group_name, sequence), by_call in sorted(calls.items(), key=lambda item: item[0][1]):
        if len(by_call) > 1:
            return Mismatch(group_name, sequence, {call: tuple(who) for call, who in by_call.items()})
    return None


def _call(entry: Collective) -> str:
    name = entry.name.rsplit(":", 1)[-1]
    return f"{name} of {entry.shape}" if SAME_SHAPE.search(name) and entry.shape else name


def lags(ranks: Sequence[Rank], offsets: Mapping[str, float]) -> Dict[int, float]:
    """Rank -> seconds by which it calls collectives later than the first rank does, the median of the recent.

    `offsets` are the hosts' clocks' leads in seconds. Only collectives count that all members recorded.
    """
    created: Dict[Tuple[str, int], Dict[int, float]] = {}
    sizes: Dict[str, int] = {}
    for rank in ranks:
        for group in rank.groups:
            sizes[group.name] = len(members(group, group.name, ranks))
            for entry in group.recent:
                if not PEER.search(entry.name):
                    at = entry.created - offsets.get(rank.host, 0.0)
                    created.setdefault((group.name, entry.sequence), {})[rank.rank] = at
    behind: Dict[int, List[float]] = {}
    for (name, _), times in created.items():
        if len(times) == sizes[name] > 1:
            first = min(times.values())
            for number, at in times.items():
                behind.setdefault(number, []).append(at - first)
    return {number: sorted(values)[len(values) // 2] for number, values in behind.items() if len(values) >= 4}
