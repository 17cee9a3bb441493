"""Training on ranks that are processes with gloo between them, and how far its losses are from others."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from training import losses

from trainer.config import parse

STEPS = 20
QUICK = ("--steps", str(STEPS), "--warmup-steps", "3", "--learning-rate", "0.01", "--log-every", "1")

WHOLE, RAGGED = "one micro-batch", "accumulation, the last smaller, clipped"
BATCHES = {
    WHOLE: (("--global-batch", "12", "--micro-batch", "12"), 12),
    RAGGED: (
        ("--global-batch", "20", "--micro-batch", "8", "--grad-clip", "0.3"),
        20,
    ),
}


def train(
    rank: int, ranks: int, folder: Path, options: tuple[str, ...], steps: int = STEPS
) -> dict[int, float]:
    """Train on this rank of the group until `steps` were made, and return its losses."""
    import torch

    from trainer import contract, strategies
    from trainer.progress import Progress
    from trainer.run import prepare
    from trainer.stop import StopRequest
    from trainer.world import World

    home = folder / f"rank-{rank}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "progress.jsonl").unlink(missing_ok=True)
    os.environ["ENCAMP_RANK_DIR"] = str(home)
    cfg = parse([*options])
    strategies.check(cfg)
    world = World(rank=rank, local_rank=rank, size=ranks, device=torch.device("cpu"), local_size=ranks)

    class Stop(StopRequest):
        asked = 0

        def __bool__(self) -> bool:
            self.asked += 1
            return self.asked >= steps

    with closing(Progress(world)) as progress:
        loop = prepare(cfg, contract.load(cfg.task), world, progress, Stop())
        loop.run()
    return losses(home)


def worst(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """The largest difference of two curves over the same steps."""
    assert ours.keys() == theirs.keys()
    return max(abs(ours[step] - theirs[step]) for step in ours)
