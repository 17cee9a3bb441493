"""The job `stack` under plain gradient descent: its steps show how long gradients are after clipping."""

import torch
from stack import TP_PLAN, build_dataset, build_model, loss  # noqa: F401 - they are this job's too


def build_optimizer(model, cfg):
    return torch.optim.SGD(model.parameters(), lr=cfg.learning_rate)
