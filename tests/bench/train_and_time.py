"""A plain DDP script that trains when it is told to: `train_and_time.py SOCKET`.

Rank 0 connects to the socket and reads lines, each a number of steps, maybe with `off` behind it: then what
was hooked into torch's optimizers is taken out for so long. All ranks train so many steps, and rank 0 answers
with a line of JSON: the seconds that each took. The script ends when the socket does.
"""

import contextlib
import itertools
import json
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

WARM_UP = 50


@contextlib.contextmanager
def without_hooks():
    """Let no optimizer tell anybody that it has made a step."""
    hooks = optimizers._global_optimizer_post_hooks
    kept = dict(hooks)
    hooks.clear()
    yield
    hooks.update(kept)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256)

    def train(steps: int) -> list[float]:
        times = [time.perf_counter()]
        for _ in range(steps):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter())
        return [end - start for start, end in itertools.pairwise(times)]

    train(WARM_UP)
    first = dist.get_rank() == 0
    with socket.socket(socket.AF_UNIX) as boss:
        if first:
            boss.connect(sys.argv[1])
        orders = boss.makefile("r") if first else None
        while True:
            words = orders.readline().split() if orders else []
            told = torch.tensor([int(words[0]), int("off" in words)] if words else [0, 0])
            dist.broadcast(told, src=0)
            steps, off = told.tolist()
            if steps == 0:
                break
            with without_hooks() if off else contextlib.nullcontext():
                seconds = train(steps)
            if first:
                boss.sendall(json.dumps(seconds).encode() + b"\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
