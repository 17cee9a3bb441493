"""A rank that trains and says when its first step was done: `first_step.py FOLDER [forever] [workers]`.

With `forever` it goes on until it is stopped; with `workers` a process of a DataLoader's reads its samples.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

words = sys.argv[2:]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = Path(sys.argv[1], f"rank{dist.get_rank()}")
samples = torch.utils.data.TensorDataset(torch.randn(2**20, 64))
loader = torch.utils.data.DataLoader(samples, batch_size=8, num_workers=int("workers" in words))
for step, (batch,) in enumerate(loader, start=1):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step == 1:
        path.with_suffix(".new").write_text(repr(time.time()))
        path.with_suffix(".new").rename(path)
        if "forever" not in words:
            break
    time.sleep(0.02)
dist.destroy_process_group()
