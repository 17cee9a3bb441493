"""A training under TensorFlow from its options to its end."""

from __future__ import annotations

import os
import time
from contextlib import closing

import tensorflow as tf

from .. import leaving, strategies
from ..batches import BatchPlan, Order
from ..config import Config
from ..contract import Task, check_dataset
from ..errors import UsageError
from ..folder import Position, wanted_step
from ..introduction import checkpoint_folder, introduce
from ..member import Member
from ..progress import Progress
from ..stop import StopRequest
from . import cluster, contract, devices
from .base import Strategy
from .checkpoint import Checkpoints
from .contract import Job
from .data import Feed, HeldOut, collate
from .loop import Loop, Parts
from .serve import serve

OLDEST = (2, 16)
"""The first with Keras 3."""

ALONE = Member(rank=0, local_rank=0, size=1)


def run(cfg: Config) -> None:
    """Train as `cfg` says, or help with it. Raises `TrainerError`, and whatever the job's own code raises."""
    began = time.perf_counter()
    stop = StopRequest()
    stop.listen()
    check(cfg)
    devices.limit_threads()
    member = ALONE
    if cfg.strategy == "tf-parameter-server":
        own = cluster.from_environment()
        if own.kind != "chief":
            serve(cfg, own, stop)
            return
        member = own.member()
    with leaving.watched(cfg.task, cfg.steps) as watch, closing(Progress(member)) as progress:
        task = contract.load(cfg.task)
        progress.record("init", 0)
        strategy: Strategy = strategies.lookup(cfg.strategy).load()(cfg)
        with closing(strategy):
            loop = prepare(cfg, task, strategy, progress, stop, member)
            watch.position = lambda: loop.position.step
            if loop.position.step >= cfg.steps:
                done = f"{loop.position.step} of {cfg.steps} steps are done"
                progress.say(f"{done}: nothing is left to do; raise --steps to go on")
                return
            word = "finished" if loop.run() else "stopped as asked"
            progress.say(f"{word} after step {loop.position.step}, {time.perf_counter() - began:.1f} s")


def check(cfg: Config) -> None:
    """Raise UsageError when an option cannot be had under TensorFlow."""
    strategies.check(cfg)
    release = tuple(int(word) for word in tf.__version__.split(".")[:2])
    if release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"--strategy {cfg.strategy} needs TensorFlow {oldest} or newer, this is {tf.__version__}"
        )
    under = f"is not there under --strategy {cfg.strategy}"
    if cfg.precision == "fp16":
        raise UsageError(f"--precision fp16 {under}: use bf16, which needs no scaled loss, or fp32")
    if cfg.activation_checkpointing == "yes":
        raise UsageError(
            f"--activation-checkpointing yes {under}: build the model under keras.RematScope, or leave it out"
        )


def prepare(
    cfg: Config, task: Task, strategy: Strategy, progress: Progress, stop: StopRequest, member: Member
) -> Loop:
    """Build everything that training needs, and resume from the newest checkpoint. Raises `TrainerError`."""
    plan = BatchPlan.derive(cfg, strategy.ranks)
    dataset = task.build_dataset(cfg, "train")
    length = check_dataset(dataset, task, "train")
    held_out = _held_out(task, cfg, strategy, progress)
    order = Order(length, cfg.seed)
    # Two of them: what should be a single number is not, with one, told from a number for each sample.
    few = [dataset[order[sample]] for sample in range(2)]
    strategy.build(Job(task, cfg), (task.collate or collate)(few))
    introduce(
        cfg,
        plan,
        progress,
        parameters=strategy.parameter_count,
        samples=length,
        ranks=member.size,
        where=strategy.describe(),
        mesh={"data": strategy.spread, "tensor": 1, "pipeline": 1, "replicas": 1},
    )
    checkpoints, start, updates = _resume(cfg, strategy, progress, length)
    parts = Parts(
        cfg=cfg,
        plan=plan,
        strategy=strategy,
        feed=Feed(dataset, task, cfg, plan, start.samples),
        held_out=held_out,
        checkpoints=checkpoints,
        progress=progress,
        stop=stop,
    )
    return Loop(parts, start, updates)


def _held_out(task: Task, cfg: Config, strategy: Strategy, progress: Progress) -> HeldOut | None:
    if cfg.eval_every == 0:
        return None
    dataset = task.build_dataset(cfg, "valid")
    length = check_dataset(dataset, task, "valid")
    held_out = HeldOut(dataset, task, cfg, strategy.spread)
    if held_out.batches == 0:
        progress.say(f"no evaluation: {length} samples held out are not one micro-batch for each rank")
        return None
    return held_out


def _resume(
    cfg: Config, strategy: Strategy, progress: Progress, length: int
) -> tuple[Checkpoints | None, Position, int]:
    """Where checkpoints go, where to start, and how many steps have changed the weights by then."""
    start = Position(step=0, samples=0, seed=cfg.seed, dataset_length=length)
    folder = checkpoint_folder(cfg)
    if folder is None:
        progress.say("no checkpoints: neither --checkpoint-dir nor $ENCAMP_RUN_DIR says where to")
        return None, start, 0
    checkpoints = Checkpoints(folder, keep=cfg.keep_checkpoints, keep_every=cfg.keep_every, say=progress.say)
    newest = checkpoints.newest(wanted_step(os.environ))
    if newest is None:
        return checkpoints, start, 0
    updates = checkpoints.load(strategy.variables(), newest)
    progress.say(f"resumed from {folder}/step-{newest.step}: going on with step {newest.step + 1}")
    if (newest.seed, newest.dataset_length) != (start.seed, start.dataset_length):
        progress.say(
            "seed or dataset are not those of the checkpoint: the data comes in another order from here on"
        )
    position = Position(
        step=newest.step, samples=newest.samples, seed=start.seed, dataset_length=start.dataset_length
    )
    return checkpoints, position, updates
