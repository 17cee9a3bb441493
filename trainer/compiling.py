"""Lets torch.compile make kernels for the model: block by block, or whole where there are no blocks.

Blocks that are alike share what was compiled, so a deep model takes hardly longer than a shallow one. As in
`activations`, a module is given a class with another `forward`: names stay, and hooks stay outside.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch

from .activations import replace_forward
from .contract import Task
from .errors import UsageError
from .strategies import blocks

SHAPES = 8
"""How often a block may be compiled anew: for training and evaluation, for batches of another size. torch's
own default, which counts all blocks together."""


def check(device: torch.device) -> None:
    """Raise UsageError where torch has nothing to compile with: on a CPU it writes C++, on a GPU Triton."""
    gpu = device.type == "cuda"
    if gpu and importlib.util.find_spec("triton") is None:
        raise _missing("the package triton", "this Python has none", "pip install triton")
    compilers = [os.environ.get("CC", "gcc"), "clang"] if gpu else [os.environ.get("CXX", "g++")]
    if not any(map(shutil.which, compilers)):
        here = f"there is no {' and no '.join(compilers)} here"
        raise _missing(f"a C{'' if gpu else '++'} compiler", here, "apt install g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise _missing("Python's headers", f"there is no {header}", "apt install python3-dev")


def _missing(what: str, here: str, line: str) -> UsageError:
    return UsageError(f"--compile yes needs {what}, and {here}: install it ({line}), or leave --compile out")


def compile_model(model: Any, task: Task) -> None:
    """Have the blocks of `model`, or all of it, compiled when they are first called. Raises JobError."""
    found = blocks.find(model, task)
    if found:
        # A block that knows its number is compiled for that number.
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        wanted = max(getattr(torch._dynamo.config, limit), len(found) * SHAPES)
        setattr(torch._dynamo.config, limit, wanted)
        # What DDP has the compiler cut, so that gradients leave early, is cut already.
        torch._dynamo.config.optimize_ddp = False
    for name, module in (found or {"the model": model}).items():
        replace_forward(module, compiled, f"job {task.name}: {name}")


def idle() -> bool:
    """Whether nothing has been compiled so far, in this process."""
    return not torch._dynamo.utils.counters["stats"]["unique_graphs"]


@functools.cache
def compiled(cls: Any) -> Any:
    """A class like `cls` whose forward is compiled. One and the same each time."""
    fast = torch.compile(cls.forward)

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        return fast(self, *map(_settled, inputs), **named)

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


def _settled(value: Any) -> Any:
    """`value`, as an ordinary tensor if it is one that is still on its way from other ranks.

    A layer that ranks share hands on such a tensor, and the gradient would not find the way back into it.
    """
    return value.clone() if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor else value
