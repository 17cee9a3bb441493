"""A plain DDP script that times itself: `train_and_time.py OUT STEPS`. Rank 0 writes its steps per second."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 20


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256)
    start = 0.0
    for step in range(steps + WARM_UP):
        if step == WARM_UP:
            dist.barrier()
            start = time.perf_counter()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    if dist.get_rank() == 0:
        part = out.with_suffix(f".{os.getpid()}")
        part.write_text(str(steps / seconds))
        part.rename(out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
