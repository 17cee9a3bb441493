"""DDP in which nothing is wrong, and something takes long: `healthy.py WHAT`."""

# ruff: noqa: PTH108, PTH123 (as people write it)

import os
import sys
import time

import torch
import torch.distributed as dist

what = sys.argv[1]


def burn(seconds):
    """Half of a core, so that others can be played meanwhile."""
    until = time.monotonic() + seconds
    matrix = torch.ones(64, 64)
    while time.monotonic() < until:
        pause = time.monotonic() + 0.05
        while time.monotonic() < pause:
            matrix = torch.tanh(matrix @ matrix)
        time.sleep(0.05)


def evaluate(seconds):
    burn(seconds)


def crunch(seconds):
    burn(seconds)


def save_checkpoint(seconds):
    until = time.monotonic() + seconds
    with open("state.bin", "wb") as file:
        while time.monotonic() < until:
            file.seek(0)
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.3)
    os.unlink("state.bin")


def tokenize(seconds):
    until, counts = time.monotonic() + seconds, {}
    while time.monotonic() < until:
        for word in ("the " * 2000).split():
            counts[word] = counts.get(word, 0) + 1
        time.sleep(0.001)


def chatter(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        print("still preparing the report", flush=True)
        time.sleep(0.2)


dist.init_process_group("gloo")
rank = dist.get_rank()
if what == "tokenize":
    if rank == 0:
        tokenize(33)
    dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
steps = {"very-slow": 8, "accumulate": 8, "uneven": 20}.get(what, 25)
for step in range(1, steps + 1):
    if what == "long-start" and step == 1:
        crunch(33)
    if what == "warm-up" and step <= 4:
        crunch(7 - step)
    if what == "uneven":
        time.sleep((0.1, 0.3, 1.5, 0.1, 3.0)[step % 5])
    if what == "very-slow":
        time.sleep(4)
    if what == "accumulate":
        for _ in range(8):
            with model.no_sync():
                model(torch.ones(2, 8)).sum().backward()
            time.sleep(0.3)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.2)
    if step == 15:
        if what == "evaluate" or (what == "evaluate-on-0" and rank == 0):
            evaluate(11)
        if what == "crunch":
            crunch(16)
        if what == "save" and rank == 0:
            save_checkpoint(11)
        if what == "chatter" and rank == 0:
            chatter(11)
        if what in ("evaluate-on-0", "save", "chatter"):
            dist.barrier()
    with open(f"step{rank}", "w") as file:
        file.write(str(step))
dist.barrier()
dist.destroy_process_group()
