"""The repeated blocks of a job's model: the submodules that are sharded, or shared out, one by one."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn

from ..contract import Task
from ..errors import JobError

LISTS = (nn.ModuleList, nn.ModuleDict)
CONTAINERS = (*LISTS, nn.Sequential)


def find(model: Any, task: Task) -> dict[str, Any]:
    """Name -> block, in the order of the model: those in the job's BLOCKS, else those found to repeat.

    Empty for a model without repeated blocks. Raises JobError when BLOCKS names no submodule.
    """
    if not task.blocks:
        return _repeated(model, "")
    found: dict[str, Any] = {}
    modules = dict(model.named_modules())
    for name in task.blocks:
        if name not in modules or not name:
            close = difflib.get_close_matches(name, [known for known in modules if known], n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise JobError(
                f"job {task.name}: BLOCKS names {name!r}, and the model has no such submodule{hint}"
            )
        holder = modules[name]
        found.update(_entries(holder, name) if isinstance(holder, CONTAINERS) else {name: holder})
    return {key: block for key, block in found.items() if _has_parameters(block)}


def _repeated(module: Any, name: str) -> dict[str, Any]:
    """The entries of each container whose entries are alike; of containers in each other the outermost."""
    children = {key: child for key, child in module.named_children() if _has_parameters(child)}
    prefix = f"{name}." if name else ""
    if isinstance(module, CONTAINERS) and len(children) > 1 and len(set(map(type, children.values()))) == 1:
        return _entries(module, name)
    found = {}
    for key, child in children.items():
        found.update(_repeated(child, prefix + key))
    return found


def _entries(holder: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, child in holder.named_children():
        path = f"{name}.{key}" if name else key
        # A list is never called, so it cannot be a block itself; what it holds is.
        found.update(_entries(child, path) if isinstance(child, LISTS) else {path: child})
    return {key: block for key, block in found.items() if _has_parameters(block)}


def refuse_tied(model: Any, blocks: dict[str, Any], task: Task, strategy: str) -> None:
    """Raise JobError when a parameter is used in two blocks, or in one and outside of it."""
    first: dict[int, tuple[str, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        unit = next((block for block in blocks if name.startswith(f"{block}.")), "")
        other, its_unit = first.setdefault(id(parameter), (name, unit))
        if unit != its_unit:
            words = [f"in block {u}" if u else "outside of the blocks" for u in (its_unit, unit)]
            raise JobError(
                f"job {task.name}: {other} and {name} are one tensor, {words[0]} and {words[1]}, which "
                f"--strategy {strategy} takes apart; untie them, or use ddp"
            )


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None
