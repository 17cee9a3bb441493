"""FSDP or DeepSpeed's ZeRO, in which one rank sleeps at step 8: `sharded.py fsdp|fsdp1|zero RANK`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, culprit = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
if what == "zero":
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    config["optimizer"] = {"type": "SGD", "params": {"lr": 0.01}}
    config["zero_allow_untested_optimizer"] = True
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        config={name: value for name, value in config.items() if name != "optimizer"},
    )
else:
    dist.init_process_group("gloo")
    if what == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)


def load_batch(step):
    if step == 8 and dist.get_rank() == culprit:
        Path("begun.part").write_text(str(time.time()))
        Path("begun.part").rename("begun")
        time.sleep(600)
    return torch.ones(2, 8)


for step in range(1, 60):
    batch = load_batch(step)
    if what == "zero":
        engine.backward(engine(batch).sum())
        engine.step()
    else:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.2)
