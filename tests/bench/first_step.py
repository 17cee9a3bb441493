"""A rank that trains and says when its first step was done: `first_step.py FOLDER`, `... FOLDER forever`."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = Path(sys.argv[1], f"rank{dist.get_rank()}")
steps = 0
while steps == 0 or sys.argv[2:] == ["forever"]:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    steps += 1
    if steps == 1:
        path.with_suffix(".new").write_text(repr(time.time()))
        path.with_suffix(".new").rename(path)
    time.sleep(0.02)
dist.destroy_process_group()
