"""A whole training on each rank of a group that `ranks.together` has made, and what came of it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training import losses, records


@dataclass(frozen=True)
class Trained:
    """What a rank has to say about its training."""

    losses: dict[int, float]
    records: list[dict[str, Any]]
    said: str
    error: str
    weights: list[float]
    """A number for each parameter, or for this rank's part of it."""


def train(
    rank: int,
    ranks: int,
    folder: Path,
    options: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> Trained:
    """Train on this rank. `environment` is for the job; fp16 is let through, as if this were no CPU."""
    import torch

    from trainer import contract, precision, strategies
    from trainer.config import parse
    from trainer.errors import NonFiniteError
    from trainer.progress import Progress
    from trainer.run import prepare
    from trainer.stop import StopRequest
    from trainer.strategies.gradients import local
    from trainer.world import World

    precision.check = lambda *_: None
    home = folder / f"rank-{rank}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "progress.jsonl").unlink(missing_ok=True)
    os.environ.update({"ENCAMP_RANK_DIR": str(home), "RANK": str(rank)} | dict(environment or {}))
    cfg = parse(["--log-every", "1", *options])
    strategies.check(cfg)
    world = World(rank=rank, local_rank=rank, size=ranks, device=torch.device("cpu"), local_size=ranks)
    stop, output, error = StopRequest(), io.StringIO(), ""
    stop.listen()
    with contextlib.redirect_stdout(output), closing(Progress(world)) as progress:
        loop = prepare(cfg, contract.load(cfg.task), world, progress, stop)
        try:
            loop.run()
        except NonFiniteError as caught:
            error = str(caught)
    weights = [float(local(p).detach().double().sum()) for p in loop.strategy.model.parameters()]
    return Trained(losses(home), records(home), output.getvalue(), error, weights)
