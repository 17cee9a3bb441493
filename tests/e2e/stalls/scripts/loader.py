"""DDP that reads from a DataLoader, whose workers go wrong on one rank: `loader.py WHAT RANK`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, culprit = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        if rank == culprit and index == 40:
            Path("begun.part").write_text(str(time.time()))
            Path("begun.part").rename("begun")
            if what == "stopped-worker":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif what == "killed-worker":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                self.download(index)
        return torch.full((8,), float(index))

    def download(self, index):
        time.sleep(600)


def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    workers = 0 if what == "no-workers" else 2
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=workers):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
