"""Which process of a cluster this one is, as TF_CONFIG says, and how the chief speaks to the others.

Workers and parameter servers run TensorFlow's server: what they compute the chief sends, and their own Python
never sees a step. So the chief lets each print lines that begin with `MARK`, and the process reads them off
its own standard output: see `serve`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import UsageError
from ..member import Member

MARK = "encamp:training"
"""Begins a line: `MARK step STEP LOSS_SUM COUNT NORM RATE` or `MARK phase PHASE STEP` or `MARK end`."""

EXAMPLE = (
    '{"cluster": {"chief": ["host:port"], "worker": ["host:port"], "ps": ["host:port"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The addresses, `host:port`, of all processes, and which of them this is."""

    chief: str
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    kind: str
    index: int

    @property
    def name(self) -> str:
        """What people call this process."""
        kind = {"worker": f"worker {self.index}", "ps": f"parameter server {self.index}"}
        return kind.get(self.kind, "chief")

    def member(self) -> Member:
        """The rank of this process: the launcher's, else the chief is the first and the servers are last."""
        workers = len(self.workers)
        place = {"chief": 0, "worker": 1 + self.index, "ps": 1 + workers + self.index}[self.kind]
        rank, local = (int(os.environ.get(name, place)) for name in ("RANK", "LOCAL_RANK"))
        return Member(rank=rank, local_rank=local, size=1 + workers + len(self.servers))

    def index_here(self) -> int:
        """How many workers before this one are at the same address."""
        host = self.workers[self.index].rpartition(":")[0]
        return sum(word.rpartition(":")[0] == host for word in self.workers[: self.index])

    def devices(self) -> list[str]:
        """The CPU of each worker and of each parameter server."""
        helpers = [("worker", number) for number in range(len(self.workers))]
        helpers += [("ps", number) for number in range(len(self.servers))]
        return [f"/job:{kind}/replica:0/task:{number}/device:CPU:0" for kind, number in helpers]


def from_environment() -> Cluster:
    """What TF_CONFIG says. Raises UsageError."""
    word = os.environ.get("TF_CONFIG")
    if not word:
        raise UsageError(
            "--strategy tf-parameter-server needs TF_CONFIG, which tells each process the addresses of all "
            f"and its own part:\n    {EXAMPLE}\nencamp launch sets it"
        )
    try:
        config = json.loads(word)
        addresses = {kind: _addresses(config["cluster"], kind) for kind in ("chief", "worker", "ps")}
        kind, index = config["task"]["type"], int(config["task"].get("index", 0))
        if not 0 <= index < len(addresses[kind]):
            raise ValueError(f"there is no {kind} {index}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"TF_CONFIG does not describe a cluster ({error!r}): it must be like\n    {EXAMPLE}"
        ) from error
    return Cluster(
        chief=addresses["chief"][0],
        workers=addresses["worker"],
        servers=addresses["ps"],
        kind=kind,
        index=index,
    )


def _addresses(cluster: dict[str, Any], kind: str) -> tuple[str, ...]:
    found = cluster[kind]
    words = tuple(found.values()) if isinstance(found, dict) else tuple(found)
    if not words or not all(isinstance(word, str) and word.rpartition(":")[2].isdigit() for word in words):
        raise ValueError(f"{kind}: no list of addresses")
    return words


def speak(*words: Any) -> None:
    """Print a line for the process whose device is the current one; becomes part of a graph."""
    tf.print(MARK, *words, output_stream=sys.stdout)
