"""A plain DDP script that trains when it is told to: `train_and_time.py SOCKET`.

Rank 0 connects to the socket and reads lines, each a number of steps. All ranks train so many, and rank 0
answers with a line that says how many seconds they took. The script ends when the socket does.
"""

import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 20


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256)

    def train(steps: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    train(WARM_UP)
    first = dist.get_rank() == 0
    with socket.socket(socket.AF_UNIX) as boss:
        if first:
            boss.connect(sys.argv[1])
        orders = boss.makefile("r") if first else None
        while True:
            told = torch.tensor(int(orders.readline() or 0) if orders else 0)
            dist.broadcast(told, src=0)
            if told == 0:
                break
            seconds = train(int(told))
            if first:
                boss.sendall(f"{seconds}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
