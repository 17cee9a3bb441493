"""DeepSpeed itself: finding it, keeping it quiet, and its engine around a model and an optimizer.

Of DeepSpeed the trainer uses ZeRO's partitions and messages. Accumulation, clipping, learning rate, mixed
precision and checkpoints stay the trainer's, so that they mean the same as under every other strategy: to
DeepSpeed the model is one in fp32, with nothing to clip or to scale.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
import warnings
from typing import Any

import torch

from ..config import Config
from ..errors import JobError, UsageError
from ..world import World

OLDEST = (0, 19, 5)
"""Older ones do not compile or run with torch 2.12 and newer, and have no partitions of this form."""

INSTALL = "pip install 'deepspeed>=0.19.5'"

ELEMENTWISE = (
    "Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop",
    "FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "DeepSpeedCPULion",
)  # fmt: skip
"""Optimizers, or what they derive from, that treat each number of a parameter by itself."""

LARGEST_KEPT_WHOLE = 100_000
"""ZeRO-3: numbers in a parameter that is not worth gathering each time."""


def load(strategy: str, device: torch.device) -> Any:
    """The module `deepspeed`, for use on `device`. Raises UsageError when it is missing or too old."""
    needs = f"--strategy {strategy} needs DeepSpeed"
    try:
        version = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"{needs}, and {sys.executable} has none: {INSTALL}") from None
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
        raise UsageError(f"{needs} 0.19.5 or newer, and {sys.executable} has {version}: {INSTALL}")
    if device.type == "cpu":
        # It would take a GPU that is there.
        os.environ["DS_ACCELERATOR"] = "cpu"
    module = importlib.import_module("deepspeed")
    # It calls what newer versions of torch have under another name, at every step of every rank.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # Those that it has not tested are told apart in `refuse_optimizer`.
    module.utils.logger.addFilter(lambda record: "untested optimizer" not in record.getMessage())
    if device.type == "cpu":
        # Its operator for shared memory would be compiled, by all ranks at once, with a compiler that may be
        # missing. Only inference uses it: in training all messages are torch's.
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return module


def refuse_optimizer(optimizer: Any, task_name: str, strategy: str) -> None:
    """Raise JobError when `optimizer` would learn another thing from pieces of parameters than from whole."""
    kinds = [kind.__name__ for kind in type(optimizer).__mro__]
    if not any(kind in ELEMENTWISE for kind in kinds):
        raise JobError(
            f"job {task_name}: --strategy {strategy} cuts the parameters into pieces, and {kinds[0]} is not "
            f"known to treat each number by itself; use ddp or fsdp, or one of {', '.join(ELEMENTWISE[:9])}"
        )


def refuse_other_types(model: Any, task_name: str, strategy: str) -> None:
    """Raise JobError when the weights are not all in fp32."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise JobError(
                f"job {task_name}: --strategy {strategy} keeps the weights in torch.float32, and {name} is "
                f"{parameter.dtype}; build the model in float32, and let --precision choose the arithmetic"
            )


def options(cfg: Config, world: World, stage: int, accumulation: int, size: int) -> dict[str, Any]:
    """DeepSpeed's configuration. `size` is how many numbers are in the whole model's parameters."""
    # In numbers of fp32, as DeepSpeed counts.
    bucket = cfg.bucket_mb * 2**20 // 4
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": bucket}
    if stage == 3:
        # A model of many small parameters would not be sharded at all by DeepSpeed's own limit.
        zero["stage3_param_persistence_threshold"] = min(LARGEST_KEPT_WHOLE, size // 100)
    if cfg.offload == "cpu":
        # Pinned memory is for copies to a GPU.
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": world.device.type == "cuda"}
    return {
        "train_micro_batch_size_per_gpu": cfg.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        # The optimizers that it has tested are fewer than those that work.
        "zero_allow_untested_optimizer": True,
        # torch's fused one steps on a CPU as well, and needs no compiler.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31 - 1,
        "zero_optimization": zero,
    }
