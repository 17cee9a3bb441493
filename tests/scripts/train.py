"""A plain training script over gloo: `train.py STEPS [WORD]` where WORD says what goes wrong on rank 1.

raise: an exception after the first step. kill: SIGKILL to itself. deaf: it ignores SIGTERM and goes nowhere.
With a WORD, also with `well`, a step is a bare all-reduce: importing torch's optimizers takes seconds.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def make_step():
    if len(sys.argv) > 2:
        return lambda: dist.all_reduce(torch.ones(8))
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


def go_wrong(word):
    if word == "raise":
        raise ValueError("loss is not finite")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    while True:
        time.sleep(0.1)


dist.init_process_group("gloo")
rank = dist.get_rank()
step = make_step()
for number in range(int(sys.argv[1])):
    step()
    print(f"rank {rank} step {number}", flush=True)
    if rank == 1 and sys.argv[2:] not in ([], ["well"]):
        go_wrong(sys.argv[2])
dist.barrier()
dist.destroy_process_group()
