"""The contract between a job and the trainer, and how a job is found.

A job is a Python file with three functions; it imports nothing of ours. `cfg` is the trainer's `Config`.

    build_model(cfg)            -> torch.nn.Module
    build_dataset(cfg, split)   -> something with len() and [index]; split is "train" or "valid"
    loss(output, batch)         -> (sum of the losses, how many were summed)

The sum and the count are kept apart so that the mean over all micro-batches and ranks is exact when they hold
different amounts. Optional, each with a default that suits an ordinary module:

    forward(model, batch)       -> output; default: model(*batch[:-1]) for a tuple or list, else model(batch),
                                which is the only one that pipeline parallelism can cut
    build_optimizer(model, cfg) -> torch.optim.Optimizer; default: AdamW, decay on matrices only
    evaluate(output, batch)     -> {"name": (sum, count)}: what an evaluation reports beside the loss
    collate(samples)            -> batch; default: torch's default_collate
    BLOCKS                      names of the submodules that are or hold the blocks to be sharded one by one;
                                default: containers whose entries are alike
    TP_PLAN                     {"pattern of submodule": "colwise" or "rowwise"}, for tensor parallelism: the
                                output of a colwise layer is split, and a rowwise one joins it again
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import JobError, UsageError

TASKS = ("gpt", "images", "regression")
"""The jobs in `tasks/`."""

SMALLEST = """\
the smallest job file is

    import torch

    def build_model(cfg):
        return torch.nn.Linear(4, 1)

    def build_dataset(cfg, split):
        return [(torch.rand(4), torch.rand(1)) for _ in range(1000)]

    def loss(output, batch):
        target = batch[-1]
        return torch.nn.functional.mse_loss(output, target, reduction="sum"), target.numel()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """What a job is written for."""

    package: str
    """The package that holds the shipped jobs, in `tasks`."""
    tasks: tuple[str, ...]
    smallest: str
    """The smallest job file, to show to whom has broken the contract."""


TORCH = Framework(package=__package__ or "", tasks=TASKS, smallest=SMALLEST)

REQUIRED = {"build_model": ("cfg",), "build_dataset": ("cfg", "split"), "loss": ("output", "batch")}
OPTIONAL = {
    "forward": ("model", "batch"),
    "build_optimizer": ("model", "cfg"),
    "evaluate": ("output", "batch"),
    "collate": ("samples",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A job that keeps the contract. Optional functions without a default are None where it has none."""

    name: str
    build_model: Callable[[Any], Any]
    build_dataset: Callable[[Any, str], Any]
    loss: Callable[[Any, Any], Any]
    forward: Callable[[Any, Any], Any]
    build_optimizer: Callable[[Any, Any], Any] | None
    evaluate: Callable[[Any, Any], Any] | None
    collate: Callable[[list[Any]], Any] | None
    blocks: tuple[str, ...]
    tp_plan: Mapping[str, str]


def load(name: str, framework: Framework = TORCH) -> Task:
    """The job of that name, or in the file of that path when it ends in `.py`.

    Raises UsageError when there is none, JobError when it is no Python, imports what is not there or breaks
    the contract, and what its import raises otherwise.
    """
    if name.endswith(".py"):
        return check(_import_file(Path(name).expanduser()), name, framework)
    tasks = framework.tasks
    if name not in tasks:
        close = difflib.get_close_matches(name, tasks, n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else f"there are {', '.join(tasks)}; a file's name ends in .py"
        )
        raise UsageError(f"--task {name}: no such task; {hint}")
    return check(importlib.import_module(f".tasks.{name}", framework.package), name, framework)


def check(module: ModuleType, name: str, framework: Framework = TORCH) -> Task:
    """The task in `module`. Raises JobError that names everything missing or wrong."""
    faults = []
    for function, parameters in (REQUIRED | OPTIONAL).items():
        value = getattr(module, function, None)
        form = f"{function}({', '.join(parameters)})"
        if value is None:
            if function in REQUIRED:
                faults.append(f"{form} is missing")
        elif not callable(value):
            faults.append(f"{function} is not a function; it must be {form}")
        elif not _takes(value, len(parameters)):
            faults.append(f"{function} cannot be called as {form}")
    blocks, plan = getattr(module, "BLOCKS", ()), getattr(module, "TP_PLAN", {})
    if not isinstance(blocks, tuple | list) or not all(isinstance(block, str) for block in blocks):
        faults.append('BLOCKS is not a list of names of submodules, such as ["layers"]')
    if not isinstance(plan, dict) or not all(value in ("colwise", "rowwise") for value in plan.values()):
        faults.append('TP_PLAN is not a dictionary of names of submodules to "colwise" or "rowwise"')
    if faults:
        raise JobError(f"job {name}: {'; '.join(faults)}\n{framework.smallest}")
    return Task(
        name=name,
        build_model=module.build_model,
        build_dataset=module.build_dataset,
        loss=module.loss,
        forward=getattr(module, "forward", default_forward),
        build_optimizer=getattr(module, "build_optimizer", None),
        evaluate=_measuring(name, module.evaluate) if getattr(module, "evaluate", None) else None,
        collate=getattr(module, "collate", None),
        blocks=tuple(blocks),
        tp_plan=plan,
    )


def check_dataset(dataset: Any, task: Task, split: str) -> int:
    """The number of samples. Raises JobError when the dataset cannot be indexed or is empty."""
    what = f"job {task.name}: build_dataset(cfg, {split!r}) returned"
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise JobError(
            f"{what} a {type(dataset).__name__}, which lacks len() or [index]: return a list, or an object "
            "with __len__ and __getitem__, so that every rank finds its samples"
        )
    if len(dataset) == 0:
        raise JobError(f"{what} no samples")
    if isinstance(dataset, Mapping) and not (0 in dataset and len(dataset) - 1 in dataset):
        raise JobError(
            f"{what} a {type(dataset).__name__} with the keys {_shown(dataset)}, and samples are asked for "
            "by number: return one of its values, or list(...) of them"
        )
    return len(dataset)


def _shown(names: Mapping[Any, Any]) -> str:
    few = [repr(name)[:40] for _, name in zip(range(3), names, strict=False)]
    return ", ".join(few) + (", ..." if len(names) > len(few) else "")


def default_forward(model: Any, batch: Any) -> Any:
    """Feed all of a tuple or list but its last entry, the target, to the model; feed anything else whole."""
    return model(*batch[:-1]) if isinstance(batch, tuple | list) else model(batch)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--task {path}: no such file in {Path.cwd()}")
    # Siblings of the file can be imported, as if it had been started itself.
    sys.path.insert(0, str(path.resolve().parent))
    name = f"job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--task {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise JobError(f"{error.filename or path}, line {error.lineno}: {error.msg}{line}") from error
    except ModuleNotFoundError as error:
        raise JobError(
            f"{_importing(error) or path} imports {error.name}, which {sys.executable} does not have: "
            f'packages = ["{(error.name or "").partition(".")[0]}"] in [env_setup] of the profile installs '
            "it; a file of your own goes along with [code]"
        ) from error
    return module


def _importing(error: ModuleNotFoundError) -> str:
    """The file and line whose import failed, or nothing."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}," if frames else ""


def _measuring(name: str, evaluate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The job's `evaluate`, which raises JobError when it returns something else than sums and counts."""

    @functools.wraps(evaluate)
    def checked(output: Any, batch: Any) -> Any:
        found = evaluate(output, batch)
        pairs = found.items() if isinstance(found, dict) else [("", None)]
        if not all(
            isinstance(key, str)
            and isinstance(pair, tuple | list)
            and len(pair) == 2
            and all(map(_is_number, pair))
            for key, pair in pairs
        ):
            raise JobError(
                f"job {name}: evaluate(output, batch) must return sums and counts by name, such as\n"
                '    {"accuracy": ((output.argmax(-1) == target).sum(), target.numel())}'
            )
        if "loss" in found:
            raise JobError(
                f"job {name}: evaluate(output, batch) returned 'loss', which is what an evaluation reports "
                "of loss(output, batch) anyway: leave it out, or give it another name"
            )
        return found

    return checked


def _is_number(value: Any) -> bool:
    """Whether `value` is a number, or a tensor of any framework with a single one."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return isinstance(value, int | float)
    return all(size in (1, None) for size in tuple(shape))


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return True  # a function in C that does not tell its parameters
    return True
