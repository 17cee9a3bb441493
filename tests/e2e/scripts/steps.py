"""Ranks that train a little model together: `steps.py STEPS [hang STEP [always]]`.

At STEP rank 1 falls asleep while the others wait for it, in the first attempt of the run or in all of them.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

steps, words = int(sys.argv[1]), sys.argv[2:]
hang_at = int(words[1]) if words and ("always" in words or os.environ["ENCAMP_ATTEMPT"] == "1") else None

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    if step == hang_at and rank == 1:
        time.sleep(600)
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
