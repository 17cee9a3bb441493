"""Training in which one rank holds the others up at step 8, or fails there.

    sleeps.py sleep|raise|exit RANK

Under `sleep` it goes on when the file `go` appears in its home folder.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, culprit = sys.argv[1], int(sys.argv[2])


def load(step):
    if step == 8 and dist.get_rank() == culprit:
        if what == "raise":
            raise ValueError(f"no sample {step}")
        if what == "exit":
            os._exit(3)
        while not (Path.home() / "go").exists():
            time.sleep(0.1)


print("the token is", os.environ.get("MY_TOKEN"), flush=True)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(1, 20):
    load(step)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
dist.barrier()
dist.destroy_process_group()
