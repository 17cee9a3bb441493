"""What a run says and records about itself before its first step, and where it keeps its checkpoints.

Nothing here knows a framework.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .batches import BatchPlan
from .config import Config
from .progress import Progress


def introduce(
    cfg: Config,
    plan: BatchPlan,
    progress: Progress,
    *,
    parameters: int,
    samples: int,
    ranks: int,
    where: str,
    mesh: Mapping[str, int],
) -> None:
    """Say what is trained, on what and how. `where` names the ranks for people, `mesh` divides them."""
    progress.say(
        f"{cfg.task}: {parameters / 1e6:.2f} M parameters, {samples:,} samples; {cfg.strategy} on {where}, "
        f"{cfg.precision}, batch {plan}"
    )
    if samples < plan.global_batch:
        progress.say(
            f"a step takes {plan.global_batch} samples and there are {samples}: it sees some more than once"
        )
    progress.record(
        "init",
        0,
        task=cfg.task,
        strategy=cfg.strategy,
        parameters=parameters,
        ranks=ranks,
        **{f"mesh_{axis}": size for axis, size in mesh.items()},
        global_batch=plan.global_batch,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        precision=cfg.precision,
        activation_checkpointing=cfg.activation_checkpointing,
        compile=cfg.compile,
        steps=cfg.steps,
    )


def checkpoint_folder(cfg: Config) -> Path | None:
    """Where checkpoints go, if anywhere."""
    if cfg.checkpoint_dir:
        return Path(cfg.checkpoint_dir).expanduser()
    run_folder = os.environ.get("ENCAMP_RUN_DIR")
    return Path(run_folder) / "checkpoints" if run_folder else None
