"""What a checkpoint holds of a model under ZeRO: whole parameters under their names, each on one rank.

The partitions are gathered one parameter at a time, and each rank keeps, on the CPU, the parameters that it
writes: no rank ever holds the whole model for it. The other way round a rank reads its parameters and tells
the others, who keep their part.
"""

from __future__ import annotations

import heapq
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import JobError
from ..world import World


class Records:
    """The parameters of `model`. Made before they are divided, while their shapes can still be seen."""

    def __init__(self, deepspeed: Any, model: Any, world: World) -> None:
        self._utils = deepspeed.utils
        self._gathered = deepspeed.zero.GatheredParameters
        self._model = model
        self._world = world
        self._parameters: dict[str, Any] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._aliases: dict[str, list[str]] = {}
        """Of a parameter that several modules share: its first name, and all of its names."""
        first: dict[int, str] = {}
        for name, value in model.state_dict(keep_vars=True).items():
            if isinstance(value, nn.Parameter):
                known = first.setdefault(id(value), name)
                self._parameters[known] = value
                self._shapes[known] = value.shape
                self._aliases.setdefault(known, []).append(name)
        self._owners = _owners(self._shapes, world.size)
        self.elsewhere = frozenset(
            alias
            for name, owner in self._owners.items()
            if owner != world.rank
            for alias in self._aliases[name]
        )
        """Names of parameters that other ranks write."""

    def follow(self, divided: Any, stage: int) -> None:
        """Say what holds the partitions: DeepSpeed's optimizer, of `stage` 1, 2 or 3."""
        self._divided = divided
        self._optimizer = divided.optimizer
        self._whole = stage < 3
        self._flat = (
            divided.single_partition_of_fp32_groups if self._whole else divided.fp32_partitioned_groups_flat
        )
        self._groups = divided.bit16_groups if self._whole else divided.fp16_groups
        self._partition = {
            id(parameter): flat
            for flat, group in zip(self._flat, self._groups, strict=True)
            for parameter in group
        }
        """In which each of the optimizer's parameters is, by the parameter's id."""

    def read(self) -> dict[str, Any]:
        """`model` and `optimizer`, as `Strategy.state` has them, of this rank's parameters.

        Raises JobError where the optimizer's state cannot be told apart by parameters.
        """
        self._link()
        kinds, scalars = self._kinds(), self._scalars()
        model: dict[str, Any] = {}
        state: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters.items():
            mine = self._owners[name] == self._world.rank
            copy = self._weights(parameter, mine)
            if mine:
                model |= dict.fromkeys(self._aliases[name], copy)
            if id(parameter) not in scalars:
                continue
            entry: dict[str, Any] = {}
            for kind in kinds:
                values = self._utils.safe_get_full_optimizer_state(parameter, kind)
                if mine:
                    entry[kind] = values.to("cpu", copy=True)
            entry |= scalars[id(parameter)]
            if mine and entry:
                state[name] = entry
        return {"model": model | self._others(), "optimizer": {"state": state}}

    def write(self, state: dict[str, Any]) -> None:
        """Take over what `read` returned, filled with other values."""
        model, moments = state["model"], state["optimizer"]["state"]
        self._link()
        kinds = self._kinds()
        for name, parameter in self._parameters.items():
            mine = self._owners[name] == self._world.rank
            entry = moments.get(name, {})
            self._set_weights(parameter, self._share(name, model[name] if mine else None))
            for kind in kinds if id(parameter) in self._partition else ():
                values = self._share(name, entry[kind] if mine else None)
                if self._whole:
                    self._utils.safe_set_full_optimizer_state(parameter, values, kind)
                else:
                    self._utils.safe_set_local_optimizer_state(parameter, self._own(parameter, values), kind)
        self._set_scalars(moments, kinds)
        # Parameters are missing in it, and those whose weights are elsewhere look empty now.
        self._model.load_state_dict({name: model[name] for name in self._others()}, strict=False)

    def _share(self, name: str, value: Any) -> Any:
        """The whole of a parameter, or of what belongs to it, on every rank. The owner has `value`."""
        if value is None:
            value = torch.empty(self._shapes[name])
        whole = value.to(self._world.device, torch.float32)
        dist.broadcast(whole, src=self._owners[name])
        return whole

    def _weights(self, parameter: Any, wanted: bool) -> Any:
        """A copy of the weights on the CPU where it is wanted. Called by all ranks together."""
        if self._whole:
            return parameter.detach().to("cpu", copy=True) if wanted else None
        if id(parameter) in self._partition:
            whole = self._utils.safe_get_full_fp32_param(parameter)
            return whole.to("cpu", copy=True) if wanted else None
        with self._gathered([parameter]):
            return parameter.detach().to("cpu", copy=True) if wanted else None

    def _set_weights(self, parameter: Any, value: Any) -> None:
        trained = id(parameter) in self._partition
        if self._whole:
            parameter.detach().copy_(value)
            if trained:
                self._utils.safe_set_full_fp32_param(parameter, value)
            return
        with self._gathered([parameter], modifier_rank=0):
            parameter.detach().copy_(value)
        if trained:
            self._utils.safe_set_local_fp32_param(parameter, self._own(parameter, value))

    def _own(self, parameter: Any, value: Any) -> Any:
        """This rank's part of `value`, as long as everybody's: zeros follow where the numbers end."""
        size = parameter.ds_tensor.numel()
        part = torch.zeros(size, device=value.device)
        numbers = value.flatten()[self._world.rank * size : (self._world.rank + 1) * size]
        part[: len(numbers)] = numbers
        return part

    def _link(self) -> None:
        """See that the optimizer has its state, and that DeepSpeed finds it."""
        if not all(flat in self._optimizer.state for flat in self._flat):
            self._make_state()
        if self._whole:
            # It looks for it after the step of the first group, when that of the others is not there yet.
            self._divided._hp_optimizer_states_linked = False
            self._divided._lazy_init_hp_params_optimizer_state()

    def _kinds(self) -> list[str]:
        """What the optimizer keeps for each number, such as `exp_avg`. Raises JobError."""
        kinds: dict[str, None] = {}
        for flat in self._flat:
            for kind, value in self._optimizer.state[flat].items():
                if isinstance(value, torch.Tensor) and value.shape == flat.shape:
                    kinds[kind] = None
                elif isinstance(value, torch.Tensor) and value.ndim:
                    raise JobError(
                        f"{type(self._optimizer).__name__} keeps {kind} in a shape of its own, which a "
                        "checkpoint cannot hold under ZeRO; use ddp or fsdp"
                    )
        return [*kinds]

    def _scalars(self) -> dict[int, dict[str, Any]]:
        """What the optimizer keeps once for a partition, such as `step`, by the ids of its parameters."""
        kinds = self._kinds()
        return {
            key: {
                kind: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
                for kind, value in self._optimizer.state[flat].items()
                if kind not in kinds
            }
            for key, flat in self._partition.items()
        }

    def _set_scalars(self, moments: dict[str, Any], kinds: list[str]) -> None:
        own = {
            name: {kind: float(entry[kind]) for kind in entry if kind not in kinds}
            for name, entry in moments.items()
        }
        everyone: list[Any] = [None] * self._world.size
        dist.all_gather_object(everyone, own)
        values = {id(self._parameters[name]): entry for part in everyone for name, entry in part.items()}
        for flat, group in zip(self._flat, self._groups, strict=True):
            state = self._optimizer.state[flat]
            for kind in values.get(id(group[0]), ()):
                # One for all: a parameter that was not used in every step counts with the others.
                most = max(values[id(parameter)][kind] for parameter in group)
                if isinstance(state[kind], torch.Tensor):
                    state[kind].fill_(most)
                else:
                    state[kind] = type(state[kind])(most)

    def _make_state(self) -> None:
        """Let the optimizer make its state, by a step from which no weight changes."""
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        gradients = [flat.grad for flat in self._flat]
        for group in groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        for index, flat in enumerate(self._flat):
            flat.grad = torch.zeros_like(flat)
            if not self._whole:
                # Its groups are empty but for the step of each of these.
                group = groups[self._divided.sub_group_to_group_id[index]]
                group["params"] = [flat]
                self._optimizer.step()
                group["params"] = []
        if self._whole:
            self._optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        for flat, gradient in zip(self._flat, gradients, strict=True):
            flat.grad = gradient

    def _others(self) -> dict[str, Any]:
        """Buffers, and what else is in the model's state: every rank has all of it."""
        names = {alias for aliases in self._aliases.values() for alias in aliases}
        return {name: value for name, value in self._model.state_dict().items() if name not in names}


def _owners(shapes: dict[str, torch.Size], ranks: int) -> dict[str, int]:
    """Which rank writes which parameter, so that all write about as much."""
    loads = [(0, rank) for rank in range(ranks)]
    owners = {}
    for name in sorted(shapes, key=lambda name: (-shapes[name].numel(), name)):
        load, rank = heapq.heappop(loads)
        owners[name] = rank
        heapq.heappush(loads, (load + shapes[name].numel(), rank))
    return owners
