"""The job `stack`, where on rank JOB_RANK the losses of the steps in JOB_BAD are not numbers.

A step has JOB_MICRO micro-batches. JOB_STOP is the step in which this rank is sent SIGTERM.
"""

import os
import signal

import torch
from stack import TP_PLAN, build_dataset, build_model  # noqa: F401 - they are this job's too
from stack import loss as good_loss

HERE = os.environ.get("RANK", "0") == os.environ.get("JOB_RANK", "0")
BAD = {int(step) for step in os.environ.get("JOB_BAD", "").split()}
MICRO, STOP = int(os.environ.get("JOB_MICRO", "1")), int(os.environ.get("JOB_STOP", "0"))
CALLS = 0


def loss(output, batch):
    global CALLS
    total, count = good_loss(output, batch)
    if HERE and torch.is_grad_enabled():
        CALLS += 1
        step, place = divmod(CALLS - 1, MICRO)
        if step + 1 in BAD and place == 0:
            total = total * float("nan")
        if step + 1 == STOP and place == 0:
            os.kill(os.getpid(), signal.SIGTERM)
    return total, count
