"""Whether hosts fit together for one run: as many ranks on each, and one release of torch. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from .errors import EncampError
from .runs import LaunchResult


@dataclass(frozen=True)
class Plan(LaunchResult):
    """What one host would start, and what it has to be like the others in. `port` is free there just now."""

    torch: str
    cuda: Optional[str]  # noqa: UP045 (read at run time by wire.from_json)
    port: int


class HostsDiffer(EncampError):
    """The hosts cannot carry one run as they are."""


def check(plans: Mapping[str, Plan], gpus: Mapping[str, int | None]) -> None:
    """Raise HostsDiffer unless all hosts start as many ranks and have the same torch, up to its minor.

    `gpus` is how many each host has; None is not known.
    """
    counts = {name: plan.nproc_per_node for name, plan in plans.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {_ranks(count, gpus.get(name))}" for name, count in counts.items())
        raise HostsDiffer(
            f"The hosts would not start equally many ranks: {said}.",
            f"Take as many on each with --nproc-per-node {min(counts.values())}, or other hosts.",
        )
    releases = {name: _release(plan.torch) for name, plan in plans.items()}
    if len(set(releases.values())) > 1:
        said = ", ".join(f"{name} {plan.torch or 'none'} ({plan.python})" for name, plan in plans.items())
        raise HostsDiffer(
            f"The hosts have different releases of torch: {said}.",
            "Install the same on all, or choose interpreters that have it: --set run.python=PATH",
        )


def _ranks(count: int, gpus: int | None) -> str:
    having = "" if not gpus else " (1 GPU)" if gpus == 1 else f" ({gpus} GPUs)"
    return ("1 rank" if count == 1 else f"{count} ranks") + having


def _release(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else version
