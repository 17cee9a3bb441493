"""What a run's trainer says of itself, in words: how its ranks share the work, and how training goes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from agent import wire

from . import formatting as fmt
from .fleet.store import RunView

NEWEST_RECORDS = 64
"""So many records back a number is looked for: one that is older is no longer how training goes."""


def shared(training: wire.Training) -> str:
    """`2 copies × 4 shards`, or data × tensor × pipeline ranks; nothing where their number says it all."""
    if training.mesh_replicas > 1:
        return f"{training.mesh_replicas} copies × {training.mesh_data // training.mesh_replicas} shards"
    axes = [training.mesh_data, training.mesh_tensor, training.mesh_pipeline]
    sizes = [str(size) for size in axes if size > 1]
    return " × ".join(sizes) if len(sizes) > 1 else ""


def batch(training: wire.Training) -> str:
    """`batch 512 = 16 × 8 × 4`: samples at a time, accumulation, ranks with samples of their own."""
    if not training.global_batch:
        return ""
    factors = (training.micro_batch, training.accumulation, training.mesh_data)
    said = f"batch {fmt.count(training.global_batch)}"
    if factors[0] * factors[1] * factors[2] != training.global_batch:
        return said  # a rank's share is not a multiple of what it takes at a time
    return f"{said} = {' × '.join(map(fmt.count, factors))}"


def numbers(run: RunView) -> list[tuple[str, str]]:
    """How training goes by the newest records: a name and a value each, those that matter most first."""
    newest: wire.Record = {}
    for record in islice(reversed(run.progress), NEWEST_RECORDS):
        newest = {**record, **newest}
    found: Iterable[tuple[str, str | None]] = (
        ("MFU", _share(newest.get("mfu"))),
        ("data wait", _share(newest.get("data_wait"))),
        ("grad norm", _number(newest.get("grad_norm"))),
        ("lr", _exponent(newest.get("learning_rate"))),
        ("loss scale", _number(newest.get("loss_scale"))),
        ("skipped steps", _skipped(newest)),
        ("parameters", fmt.si(run.training.parameters) if run.training and run.training.parameters else None),
    )
    return [(name, value) for name, value in found if value is not None]


def finite(value: wire.Scalar) -> float | None:
    """`value` if it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _share(value: wire.Scalar) -> str | None:
    number = finite(value)
    return None if number is None or not 0 <= number <= 1 else f"{fmt.percent(100 * number):>5}"


def _number(value: wire.Scalar) -> str | None:
    number = finite(value)
    if number is None:
        return value if value in ("nan", "inf", "-inf") and isinstance(value, str) else None
    return f"{fmt.number(number):>6}"


def _exponent(value: wire.Scalar) -> str | None:
    number = finite(value)
    return None if number is None else f"{number:.1e}"


def _skipped(record: wire.Record) -> str | None:
    """Steps that changed nothing, because loss or gradients were not finite; nothing while there is none."""
    counts = (finite(record.get(name)) for name in ("skipped_steps", "overflowed_steps"))
    steps = int(sum(count for count in counts if count is not None))
    return fmt.count(steps) if steps > 0 else None
