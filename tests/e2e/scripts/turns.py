"""Ranks that say in turn `turn 0`, `turn 1`, ...: whoever watches them all sees the numbers in their order.

turns.py [PAUSE [TURNS]]: seconds between two turns, and after how many rank 1 exits with code 3.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

pause, turns = [*map(float, sys.argv[1:]), *(0.1, 1e9)[len(sys.argv) - 1 :]]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
turn = 0
while True:
    if turn % world == rank:
        print("turn", turn, flush=True)
    if rank == 1 and turn >= turns:
        os._exit(3)
    time.sleep(pause)
    dist.all_reduce(torch.ones(1))
    turn += 1
