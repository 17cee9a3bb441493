"""A training run from its options to its end: builds the parts and lets the loop work.

Faults that every rank finds are raised before any rank waits for another.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress

import torch
import torch.distributed as dist

from . import compiling, contract, fitting, flops, leaving, places, precision, strategies
from .batches import BatchPlan
from .checkpoint import Checkpoints
from .config import Config
from .contract import Task, check_dataset
from .data import Feed, HeldOut, worker_faults
from .errors import UsageError
from .folder import Position, wanted_step
from .introduction import checkpoint_folder, introduce
from .loop import Loop, Parts
from .progress import Progress
from .stop import StoppedAtOnce, StopRequest
from .strategies.base import Strategy
from .strategies.layout import Layout
from .world import World, join

OLDEST_TORCH = (2, 4)


def run(cfg: Config) -> None:
    """Train as `cfg` says. Raises `TrainerError`, and whatever the job's own code raises."""
    began = time.perf_counter()
    stop = StopRequest()
    stop.listen()
    if torch.__version__ < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UsageError(f"needs torch {oldest} or newer, this is {torch.__version__}")
    strategies.check(cfg)
    with suppress(StoppedAtOnce), leaving.watched(cfg.task, cfg.steps) as watch:
        task = contract.load(cfg.task)
        with join(cfg.device) as world, closing(Progress(world)) as progress:
            loop = prepare(cfg, task, world, progress, stop)
            watch.position = lambda: loop.position.step
            _train(loop, began)


def _train(loop: Loop, began: float) -> None:
    cfg, progress = loop.cfg, loop.progress
    if loop.position.step >= cfg.steps:
        done = f"{loop.position.step} of {cfg.steps} steps are done"
        progress.say(f"{done}: nothing is left to do; raise --steps to go on")
        return
    try:
        with worker_faults():
            word = "finished" if loop.run() else "stopped as asked"
    except StoppedAtOnce:
        progress.say(
            f"stopped as asked while step {loop.position.step + 1} was being compiled: no step is lost"
        )
        raise
    progress.say(f"{word} after step {loop.position.step}, {time.perf_counter() - began:.1f} s")


def prepare(cfg: Config, task: Task, world: World, progress: Progress, stop: StopRequest) -> Loop:
    """Build everything that training needs, and resume from the newest checkpoint. Raises `TrainerError`."""
    progress.record("init", 0)
    precision.check(cfg.precision, world.device)
    if cfg.compile == "yes":
        compiling.check(world.device)
    kind = strategies.find(cfg.strategy)
    layout = kind.divide(cfg, world)
    dataset = task.build_dataset(cfg, "train")
    length = check_dataset(dataset, task, "train")
    # Else they would miss samples and repeat others.
    _agree("number of samples in the dataset", length, world)
    if cfg.micro_batch == fitting.AUTO:
        cfg = fitting.resolve(cfg, task, world, dataset, progress)
    plan = BatchPlan.derive(cfg, layout.data, layout.stages)
    held_out = _held_out(task, cfg, world, layout, progress)
    torch.manual_seed(cfg.seed)
    strategy = kind(task, cfg, world, plan.accumulation, dataset)
    some = "1 rank" if world.size == 1 else f"{world.size} ranks"
    division = ", ".join(filter(None, (str(strategy.layout), world.device.type)))
    introduce(
        cfg,
        plan,
        progress,
        parameters=strategy.parameter_count,
        samples=length,
        ranks=world.size,
        where=f"{some} ({division})",
        mesh=strategy.layout.mesh(world.size),
    )
    checkpoints, start = _resume(cfg, world, strategy, progress, length)
    parts = Parts(
        cfg=cfg,
        plan=plan,
        world=world,
        strategy=strategy,
        feed=Feed(dataset, task, cfg, plan, world.device, layout.data_rank, start.samples),
        held_out=held_out,
        utilisation=flops.agree(strategy.counting, cfg.precision, world, progress),
        checkpoints=checkpoints,
        progress=progress,
        stop=stop,
    )
    return Loop(parts, start)


def _agree(what: str, value: object, world: World) -> None:
    """Raise UsageError when the ranks differ in what has to be the same: they would miss each other."""
    values: list[object] = [None] * world.size
    dist.all_gather_object(values, value)
    other = next((rank for rank, theirs in enumerate(values) if theirs != values[0]), None)
    if other is not None:
        raise UsageError(f"{what}: {values[0]} on rank 0 and {values[other]} on rank {other}")


def _held_out(task: Task, cfg: Config, world: World, layout: Layout, progress: Progress) -> HeldOut | None:
    if cfg.eval_every == 0:
        return None
    dataset = task.build_dataset(cfg, "valid")
    length = check_dataset(dataset, task, "valid")
    held_out = HeldOut(dataset, task, cfg, world.device, layout.data_rank, layout.data)
    if held_out.batches == 0:
        progress.say(f"no evaluation: {length} samples held out are not one micro-batch for each rank")
        return None
    return held_out


def _resume(
    cfg: Config, world: World, strategy: Strategy, progress: Progress, length: int
) -> tuple[Checkpoints | None, Position]:
    """Where checkpoints go, and where to start: at the newest one, or at the beginning."""
    start = Position(step=0, samples=0, seed=cfg.seed, dataset_length=length)
    folder = checkpoint_folder(cfg)
    _agree("--checkpoint-dir or $ENCAMP_RUN_DIR", "missing" if folder is None else "set", world)
    if folder is None:
        progress.say("no checkpoints: neither --checkpoint-dir nor $ENCAMP_RUN_DIR says where to")
        return None, start
    found = places.find(folder, world)
    if found.nodes > 1:
        progress.say(found.describe(folder))
    checkpoints = Checkpoints(
        folder, keep=cfg.keep_checkpoints, keep_every=cfg.keep_every, places=found, say=progress.say
    )
    checkpoints.check(strategy)
    wanted = wanted_step(os.environ)
    _agree("ENCAMP_RESUME_STEP", str(wanted), world)
    newest = checkpoints.newest(wanted)
    if newest is None:
        return checkpoints, start
    checkpoints.load(strategy, newest)
    progress.say(f"resumed from {folder}/step-{newest.step}: going on with step {newest.step + 1}")
    if (newest.seed, newest.dataset_length) != (start.seed, start.dataset_length):
        progress.say(
            "seed or dataset are not those of the checkpoint: the data comes in another order from here on"
        )
    return checkpoints, Position(
        step=newest.step, samples=newest.samples, seed=start.seed, dataset_length=start.dataset_length
    )
