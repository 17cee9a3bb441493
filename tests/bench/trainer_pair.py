"""Run by torchrun: the trainer's loop and the shortest hand-written one take turns, with the same model.

Usage: trainer_pair.py TURNS STEPS [trainer options]. Rank 0 prints one JSON object: seconds and
processor seconds a step, of each of the two in every turn.
"""

import itertools
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer import contract
from trainer.config import parse
from trainer.precision import autocast
from trainer.progress import Progress
from trainer.run import prepare
from trainer.stop import StopRequest
from trainer.world import join

TURNS, STEPS = int(sys.argv[1]), int(sys.argv[2])


def by_hand(cfg, task, world):
    """What one would write first. The loss is read as often as by the trainer."""
    torch.manual_seed(cfg.seed)
    model = task.build_model(cfg).to(world.device)
    if cfg.strategy == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    elif cfg.compile == "yes":
        model.compile()
    if cfg.strategy == "ddp" and world.size > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate, fused=True)
    dataset = task.build_dataset(cfg, "train")
    loader = DataLoader(
        dataset,
        batch_size=int(cfg.micro_batch),
        sampler=DistributedSampler(dataset),
        num_workers=cfg.workers,
        pin_memory=world.device.type == "cuda",
        drop_last=True,
    )
    for step, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader)), start=1):
        tokens, target = (part.to(world.device, non_blocking=True) for part in batch)
        with autocast(cfg.precision, world.device):
            output = model(tokens)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % cfg.log_every == 0:
            loss.item()
        yield


def by_trainer(cfg, task, world):
    loop = prepare(cfg, task, world, Progress(world), StopRequest())
    for step in itertools.count(1):
        loop._step(step)
        yield


def main():
    cfg = parse([*sys.argv[3:], "--steps", str(10**9)])
    task = contract.load(cfg.task)
    with join("auto") as world:
        loops = {"hand": by_hand(cfg, task, world), "trainer": by_trainer(cfg, task, world)}
        seconds = {name: [] for name in loops}
        processor = {name: [] for name in loops}
        for turn in range(TURNS + 1):
            for name in sorted(loops, reverse=bool(turn % 2)):
                dist.barrier()
                began, cpu = time.perf_counter(), time.process_time()
                for _ in range(STEPS):
                    next(loops[name])
                cpu = time.process_time() - cpu
                dist.barrier()
                if turn:  # the first warms up
                    seconds[name].append((time.perf_counter() - began) / STEPS)
                    processor[name].append(cpu / STEPS)
        if world.first:
            print(json.dumps({"seconds": seconds, "processor": processor}), flush=True)


main()
