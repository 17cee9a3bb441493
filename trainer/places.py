"""Which ranks see the same checkpoint folder: a *place* is a folder with all the ranks that see it.

On one host, or on a file system that all hosts share, there is one place. On rented hosts the same path means
a folder of its own on each, and each is a place. Nobody says which it is: the hosts leave marks in the folder
and look for each other's.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from .errors import CheckpointError
from .world import World

T = TypeVar("T")

MARK = ".place-"
NAMED = 4
"""So many hosts are named in a line; of more, their number is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What a rank tells the others about the host that it is on."""

    number: int
    host: str
    token: str


class Places:
    """The places, numbered in the order of their first ranks. Methods are called by all ranks together."""

    def __init__(
        self, ranks: list[tuple[int, ...]], names: list[str], nodes: int, everybody: Any = None
    ) -> None:
        self.ranks = ranks
        """Those of each place, ascending."""
        self.names = names
        """Of each place: its first host."""
        self.nodes = nodes
        """How many hosts there are in all."""
        self.everybody = everybody
        """The process group of all ranks over which they talk here; None is that of the training."""
        rank = dist.get_rank()
        self.own = next(number for number, members in enumerate(ranks) if rank in members)
        self.leads = ranks[self.own][0] == rank
        """Whether this rank does what is done once in its place."""
        self.group: Any = None
        """The process group of this place, on CPUs; None when it is that of all ranks."""
        if self.several:
            # The other places do not wait for it: with many hosts they would for each of them.
            self.group = dist.new_group(list(ranks[self.own]), backend="gloo", use_local_synchronization=True)

    def apart(self) -> Places:
        """The same places with process groups of their own, on CPUs: for a thread beside the training's."""
        return Places(self.ranks, self.names, self.nodes, dist.new_group(backend="gloo"))

    @property
    def several(self) -> bool:
        """Whether there is more than one place."""
        return len(self.ranks) > 1

    def describe(self, folder: Path) -> str:
        """A line for people."""
        if not self.several:
            return f"checkpoints: {folder} is shared by all {self.nodes} hosts"
        if len(self.ranks) == self.nodes:
            return (
                f"checkpoints: {folder} is not shared by the {self.nodes} hosts: "
                "each keeps whole checkpoints of its own"
            )
        return (
            f"checkpoints: {folder} is not shared by all {self.nodes} hosts: "
            f"{len(self.ranks)} keep whole checkpoints, {self.named(range(len(self.ranks)))}"
        )

    def named(self, numbers: Iterable[int]) -> str:
        """The names of places, for people."""
        names = [self.names[number] for number in numbers]
        if len(names) > NAMED:
            return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more"
        return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)

    def leaders_do(self, action: Callable[[], T]) -> list[T]:
        """Let the leader of each place act while the others wait, and give all ranks all the results.

        All raise CheckpointError when it fails anywhere.
        """
        outcome: tuple[Any, str | None] = (None, None)
        if self.leads:
            try:
                outcome = (action(), None)
            except OSError as error:
                outcome = (None, str(error))
        outcomes = self._gather(outcome)
        failed = next(
            (n for n, members in enumerate(self.ranks) if outcomes[members[0]][1] is not None), None
        )
        if failed is not None:
            raise CheckpointError(self.say_where(failed, outcomes[self.ranks[failed][0]][1]))
        return [outcomes[members[0]][0] for members in self.ranks]

    def attempt(self, action: Callable[[], T]) -> tuple[T | None, dict[int, str]]:
        """Let every rank act, and give it its result and what failed, by place: the same on all ranks.

        `action` raises CheckpointError or OSError for a failure.
        """
        result, failure = None, None
        try:
            result = action()
        except (CheckpointError, OSError) as error:
            failure = str(error)
        failures: dict[int, str] = {}
        for rank, text in enumerate(self._gather(failure)):
            if text is not None:
                number = next(number for number, members in enumerate(self.ranks) if rank in members)
                failures.setdefault(number, text)
        return result, failures

    def all_do(self, action: Callable[[], None]) -> None:
        """Let every rank act. All raise CheckpointError when it fails on any."""
        _, failures = self.attempt(action)
        if failures:
            raise CheckpointError(self.say_where(*next(iter(failures.items()))))

    def hold_all(self, enough: bool) -> bool:
        """Whether in each place at least one rank says that it has `enough`."""
        said = self._gather(enough)
        return all(any(said[rank] for rank in members) for members in self.ranks)

    def say_where(self, number: int, text: str) -> str:
        """`text` with the host in front, if there are several."""
        return f"{self.names[number]}: {text}" if self.several else text

    def _gather(self, value: Any) -> Any:
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.everybody)
        return values


def find(folder: Path, world: World) -> Places:
    """Look which hosts share `folder`, which need not be there. Called by all ranks together."""
    told: list[Any] = [None] * world.size
    dist.all_gather_object(
        told, Node(number=world.node, host=socket.gethostname(), token=secrets.token_hex(8))
    )
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(told):
        nodes.setdefault(node.number, []).append(rank)
    hosts = {number: told[ranks[0]].host for number, ranks in nodes.items()}
    if len(nodes) == 1:
        return Places([tuple(range(world.size))], list(hosts.values()), 1)
    alike = Counter(hosts.values())
    members: list[tuple[int, ...]] = []
    names: list[str] = []
    for together in _meet(folder, told[0].token, world, nodes):
        members.append(tuple(sorted(rank for number in together for rank in nodes[number])))
        host = hosts[together[0]]
        names.append(host if alike[host] == 1 else f"{host} (node rank {together[0]})")
    return Places(members, names, len(nodes))


def _meet(folder: Path, token: str, world: World, nodes: dict[int, list[int]]) -> list[list[int]]:
    """The nodes, those together that share the folder, in the order of their first ranks."""
    first = nodes[world.node][0] == world.rank
    own = folder / f"{MARK}{token}-{world.node}"
    if first:
        _leave(own, token)
    dist.barrier()
    seen = [number for number in nodes if first and _there(folder / f"{MARK}{token}-{number}")]
    everybody: list[Any] = [None] * world.size
    dist.all_gather_object(everybody, seen)
    if first:
        _take(own)
    result: list[list[int]] = []
    for number, ranks in nodes.items():
        met = {number, *everybody[ranks[0]]}
        known = [together for together in result if met & set(together)]
        result = [together for together in result if together not in known]
        merged = {number, *(node for together in known for node in together)}
        result.append([node for node in nodes if node in merged])
    return sorted(result, key=lambda together: nodes[together[0]][0])


def _leave(mark: Path, token: str) -> None:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        for old in mark.parent.glob(f"{MARK}*"):
            if token not in old.name:
                _take(old)
        mark.touch()
    except OSError:
        pass  # Saving will say so. Until then this host can still see the marks of the others.


def _there(mark: Path) -> bool:
    try:
        # By a name that nobody has asked for yet: a network file system answers that afresh.
        mark.stat()
    except OSError:
        return False
    return True


def _take(mark: Path) -> None:
    try:
        mark.unlink()
    except OSError:
        pass
