"""On a GPU: GPT-2's smallest, 124 M parameters in bf16 and compiled, by the trainer and by a loop by hand.

Usage: gpt124m.py [--cpu]. Prints one JSON object: tokens a second, MFU and peak memory of each, their ratio,
and the micro-batch that the trainer found. Takes a few minutes. --cpu goes the same way with a tiny model.

This is also the job that the trainer is given: the shipped GPT with the vocabulary and the tied weights of
GPT-2, on tokens drawn at random.
"""

import argparse
import gc
import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trainer import contract
from trainer.config import parse
from trainer.precision import autocast
from trainer.progress import Progress
from trainer.run import prepare
from trainer.stop import StopRequest
from trainer.tasks import gpt
from trainer.world import join

VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, rounded up to a multiple of 64. A tiny model has a hundredth of them."""

WARM_UP, STEPS = 3, 10


def vocabulary(cfg):
    return VOCABULARY // 100 if cfg.size == "tiny" else VOCABULARY


def build_model(cfg):
    gpt.VOCABULARY = vocabulary(cfg)
    model = gpt.build_model(cfg)
    model.head.weight = model.embedding.weight
    return model


def build_dataset(cfg, split):
    generator = torch.Generator().manual_seed(1)
    return gpt.Windows(
        torch.randint(vocabulary(cfg), (1024 * cfg.sequence_length + 1,), generator=generator),
        cfg.sequence_length,
    )


loss = gpt.loss
BLOCKS = gpt.BLOCKS


def by_trainer(cfg, world):
    """Steps of the trainer, one after the other. First gives its parts."""
    loop = prepare(cfg, contract.load(cfg.task), world, Progress(world), StopRequest())
    loop.strategy.model.train()
    yield loop.parts
    step = 0
    while True:
        step += 1
        loop._step(step)
        yield None


def by_hand(cfg, world, plan):
    """What one would write first."""
    torch.manual_seed(cfg.seed)
    model = build_model(cfg).to(world.device)
    if cfg.compile == "yes":
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate, fused=True)
    loader = DataLoader(
        build_dataset(cfg, "train"),
        batch_size=plan.micro_batch,
        shuffle=True,
        drop_last=True,
        num_workers=cfg.workers,
        pin_memory=world.device.type == "cuda",
    )
    batches = iter(loader)
    while True:
        for _ in range(plan.accumulation):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            tokens, target = (part.to(world.device, non_blocking=True) for part in batch)
            with autocast(cfg.precision, world.device):
                output = model(tokens)
                mean = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
            (mean / plan.accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        yield None


def measure(steps, device):
    """Seconds a step, and the most memory in bytes."""
    on_gpu = device.type == "cuda"
    for _ in range(WARM_UP):
        next(steps)
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        next(steps)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / STEPS
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    steps.close()
    gc.collect()
    torch._dynamo.reset()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return seconds, peak


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--cpu", action="store_true")
    small = options.parse_args().cpu
    words = ["--task", str(Path(__file__).resolve()), "--steps", str(10**6), "--log-every", str(10**6)]
    if small:
        words += ["--device", "cpu", "--size", "tiny", "--sequence-length", "32"]
        words += ["--global-batch", "8", "--micro-batch", "4"]
    else:
        words += ["--device", "cuda", "--size", "medium", "--sequence-length", "1024", "--workers", "4"]
        words += ["--precision", "bf16", "--compile", "yes", "--global-batch", "128", "--micro-batch", "auto"]
    cfg = parse(words)
    with join(cfg.device) as world:
        began = time.perf_counter()
        steps = by_trainer(cfg, world)
        parts = next(steps)
        plan, utilisation, parameters = parts.plan, parts.utilisation, parts.strategy.parameter_count
        del parts
        measured = {"trainer": measure(steps, world.device)}
        measured["hand"] = measure(by_hand(cfg, world, plan), world.device)
        tokens = plan.global_batch * cfg.sequence_length
        result = {
            "gpu": torch.cuda.get_device_name() if world.device.type == "cuda" else "none",
            "torch": torch.__version__,
            "parameters": parameters,
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch,
            "accumulation": plan.accumulation,
            "tokens_per_second": {name: tokens / seconds for name, (seconds, _) in measured.items()},
            "ratio": measured["hand"][0] / measured["trainer"][0],
            "mfu": {
                name: utilisation.share(plan.global_batch / seconds)
                for name, (seconds, _) in measured.items()
            },
            "memory_bytes": {name: peak for name, (_, peak) in measured.items()},
            "seconds": time.perf_counter() - began,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
