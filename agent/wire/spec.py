"""What a launch asks of a host: the spec of an attempt, the hosts of its run, the code that it takes."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple


@dataclasses.dataclass(frozen=True)
class CodeRef:
    """A content-addressed archive already stored on the host and put on the ranks' `PYTHONPATH`."""

    sha256: str
    name: str


@dataclasses.dataclass(frozen=True)
class Tree:
    """A project's files, already on the host. `sha256` is that of the list of their names and hashes."""

    sha256: str
    name: str
    files: int
    bytes: int
    revision: str = ""
    """What version control calls it, such as `3f2c1a9` or `3f2c1a9 with changes`; empty without any."""


@dataclasses.dataclass(frozen=True)
class EnvSetup:
    """What a virtual environment gets besides what the interpreter that it is made from has."""

    packages: Tuple[str, ...] = ()
    pip_args: Tuple[str, ...] = ()
    recipe: str = ""
    """Built by our recipe of that name, for what pip alone does not bring; empty without one."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One host of a run on several."""

    name: str
    """The launching user's word for it."""
    host_id: str
    """See `Hello`: another user may call it otherwise."""
    address: str
    """By which the other hosts reach it."""
    interface: str
    """The network interface that has the address."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """The hosts of one attempt in the order of their node ranks, and which of them the recipient is."""

    nodes: Tuple[Node, ...]
    node_rank: int
    rendezvous_address: str
    rendezvous_port: int
    rendezvous_id: str


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """Everything a host needs to know to start one attempt of a run.

    `nproc_per_node` 0 means "auto": one rank a GPU, or on a host without GPUs one a core, at least 2.
    `python` "auto" means the first interpreter on the host that imports torch.
    `target_kind` is `script` (a path on the host), `module` (as in `python -m`), or `task` (a task of the
    built-in trainer: the target is its module, and `code` carries it).
    `cwd` empty means the user's home directory on the host, or with a `project` the run's copy of it, to
    which a relative one is relative.
    `secret_sources` says where the launching user's machine finds each secret; the values are not in here.
    """

    run: str
    name: str
    profile: str
    strategy: str
    target_kind: str
    target: str
    args: Tuple[str, ...] = ()
    cwd: str = ""
    nproc_per_node: int = 0
    python: str = "auto"
    env: Dict[str, str] = dataclasses.field(default_factory=dict)
    code: Tuple[CodeRef, ...] = ()
    stop_grace_seconds: float = 30.0
    project: Optional[Tree] = None
    env_setup: Optional[EnvSetup] = None
    secret_sources: Dict[str, str] = dataclasses.field(default_factory=dict)
    stall_seconds: float = 0.0
    """How long a rank may go without progress; 0: what the run's own rhythm allows."""
