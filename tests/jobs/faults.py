"""A regression with dropout that goes wrong where the environment says: at step JOB_AT, on rank JOB_RANK.

JOB_FAULT is what happens there: `stop` (this process is sent SIGTERM), `nan` (the loss is not a number),
`slope` (the loss is, but its gradient is not), `nothing` (nothing is counted, on any rank), `raise`.
"""

import os
import signal

import torch
from torch import nn

FAULT, AT = os.environ.get("JOB_FAULT", ""), int(os.environ.get("JOB_AT", "0"))
RANK, HERE = int(os.environ.get("JOB_RANK", "0")), int(os.environ.get("RANK", "0"))
MODELS = []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        return self.layers(x)

    def due(self, fault):
        return fault == FAULT and HERE == RANK and self.steps == AT


def build_model(cfg):
    MODELS.append(Model())
    return MODELS[-1]


def build_dataset(cfg, split):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 6, generator=generator)
    return list(zip(x, x.sum(1, keepdim=True), strict=True))


def loss(output, batch):
    model = MODELS[-1]
    total, count = ((output - batch[1]) ** 2).sum(), len(output)
    if model.due("stop"):
        os.kill(os.getpid(), signal.SIGTERM)
    if model.due("raise"):
        raise ZeroDivisionError("the job's own fault")
    if model.due("nan"):
        total = total * float("nan")
    if model.due("slope"):
        total = total + (output * 0).sum().sqrt()
    if FAULT == "nothing" and model.steps == AT:
        return total * 0, 0
    return total, count


def evaluate(output, batch):
    return {"error": ((output - batch[1]).abs().sum(), len(output))}
