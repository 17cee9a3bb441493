"""A rank that trains and says when its first step was done: `first_step.py FOLDER`, `... FOLDER forever`."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = f"{sys.argv[1]}/rank{dist.get_rank()}"
steps = 0
while steps == 0 or sys.argv[2:] == ["forever"]:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    steps += 1
    if steps == 1:
        with open(f"{path}.new", "w") as file:
            file.write(repr(time.time()))
        os.rename(f"{path}.new", path)
    time.sleep(0.02)
dist.destroy_process_group()
