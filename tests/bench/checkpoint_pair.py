"""Run by torchrun: saves of the trainer that training waits for and saves beside it, in turns.

Usage: checkpoint_pair.py TURNS FOLDER [trainer options]. Rank 0 prints one JSON object: for each kind the
seconds that training waited and the seconds until the checkpoint counted, of each turn.
"""

import json
import sys
import time
from dataclasses import replace

import torch.distributed as dist

from trainer import contract
from trainer.config import parse
from trainer.progress import Progress
from trainer.run import prepare
from trainer.stop import StopRequest
from trainer.world import join

TURNS, FOLDER = int(sys.argv[1]), sys.argv[2]
STEPS = 2
"""Made while a checkpoint is written."""


def main():
    cfg = parse([*sys.argv[3:], "--steps", str(10**9), "--checkpoint-dir", FOLDER, "--keep-checkpoints", "1"])
    task = contract.load(cfg.task)
    with join("auto") as world:
        loop = prepare(cfg, task, world, Progress(world), StopRequest())
        checkpoints = loop.parts.checkpoints
        step = 0

        def train():
            nonlocal step
            began = time.perf_counter()
            for _ in range(STEPS):
                step += 1
                loop._step(step)
            return time.perf_counter() - began

        train()
        told = {name: {"held_up": [], "took": [], "steps": []} for name in ("wait", "beside")}
        for turn in range(TURNS + 1):
            for name in sorted(told, reverse=bool(turn % 2)):
                dist.barrier()
                position = replace(loop.position, step=step)
                save = checkpoints.save(loop.strategy, position, background=name == "beside")
                held_up = save.held_up
                steps = train()
                took = save.result()
                if turn:  # the first warms up
                    told[name]["held_up"].append(held_up)
                    told[name]["took"].append(took)
                    told[name]["steps"].append(steps / STEPS)
        if world.first:
            print(json.dumps(told), flush=True)


main()
