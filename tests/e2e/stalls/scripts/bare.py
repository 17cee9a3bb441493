"""Programs that show little of themselves: `bare.py WHAT`."""

# ruff: noqa: PTH110 (as people write it)

import os
import sys
import time
from pathlib import Path

what = sys.argv[1]
rank = int(os.environ["RANK"])


def begin():
    Path("begun.part").write_text(str(time.time()))
    Path("begun.part").rename("begun")


def wait_for_ever():
    while not os.path.exists("never"):
        time.sleep(0.1)


def exchange(culprit, rounds=400):
    """Collectives and no optimizer, as when a model is only asked."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for number in range(rounds):
        if number == 100 and dist.get_rank() == culprit:
            begin()
            wait_for_ever()
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
    dist.barrier()
    dist.destroy_process_group()


def spawned(local):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{Path.cwd()}/meeting", rank=local, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(60):
        if step == 20 and local == 1:
            begin()
            wait_for_ever()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.1)


if __name__ == "__main__":
    if what == "no-torch":
        time.sleep(38)
    elif what == "no-optimizer":
        exchange(1)
    elif what == "no-optimizer-healthy":
        exchange(-1)
    elif what == "never-joins":
        if rank == 1:
            begin()
            wait_for_ever()
        exchange(-1)
    elif what == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, nprocs=2)
