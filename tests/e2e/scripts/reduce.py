"""A rank that adds up ones with all others: with `forever` again and again, until it is ended."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "counts", int(ones.item()), flush=True)
while sys.argv[1:] == ["forever"]:
    time.sleep(0.05)
    dist.all_reduce(ones)
dist.destroy_process_group()
