"""A job whose samples have different lengths: padded, and counted by what is not padding.

It asks to be stopped in step JOB_STOP_AT, on the last rank.
"""

import os
import signal

import torch
import torch.nn.functional as F
from torch import nn

PADDING = -100
WIDTH = 8


STOP_AT = int(os.environ.get("JOB_STOP_AT", "0")) if os.environ.get("RANK") == "1" else 0
STEPS = 0


def build_model(cfg):
    return nn.Sequential(nn.Embedding(16, 12), nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16))


def build_dataset(cfg, split):
    generator = torch.Generator().manual_seed(7)
    samples = []
    for _ in range(53):
        tokens = torch.randint(16, (WIDTH,), generator=generator)
        target = (tokens * 3 + 1) % 16
        target[int(torch.randint(1, WIDTH + 1, (), generator=generator)) :] = PADDING
        samples.append((tokens, target))
    return samples


def loss(output, batch):
    global STEPS
    STEPS += 1
    if STEPS == STOP_AT:
        os.kill(os.getpid(), signal.SIGTERM)
    target = batch[1]
    total = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=PADDING, reduction="sum")
    return total, (target != PADDING).sum()
