"""tf-mirrored: one process, and a copy of the model on each of its devices, as `MirroredStrategy` does it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..config import Config
from .base import Numbers, Strategy
from .contract import Job
from .devices import divide_cpu, gpus

CPU_REPLICAS = 2
"""Copies on a host without GPUs: enough for all that several of them do to happen."""


@functools.cache
def _over(devices: tuple[str, ...]) -> Any:
    """The strategy of this process: two would number their messages alike, and mix them up."""
    return tf.distribute.MirroredStrategy(list(devices))


class Mirrored(Strategy):
    """All GPUs that the process sees, else the CPU as two devices. Each replica takes its share of a step."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        found = gpus(cfg.device)
        if found:
            devices = [f"GPU:{number}" for number in range(len(found))]
        else:
            devices = [f"CPU:{number}" for number in range(CPU_REPLICAS)]
            divide_cpu(CPU_REPLICAS)
        self.device = "GPU" if found else "CPU"
        self.distribution = _over(tuple(devices))
        self.ranks = self.spread = self.distribution.num_replicas_in_sync

    def build(self, job: Job, batch: Any) -> None:
        """See `Strategy`."""
        super().build(job, batch)
        self._add = tf.function(self._add_on_all, autograph=False)
        self._end = tf.function(self._end_on_all, autograph=False)
        self._whole = tf.function(self._whole_on_all, autograph=False)
        self._measure = tf.function(self._measure_on_all, autograph=False)
        self._sums: list[Any] = []
        self._kept: list[Any] = []

    def describe(self) -> str:
        """See `Strategy`."""
        if self.ranks == 1:
            return f"1 {self.device}"
        return f"{self.ranks} GPUs" if self.device == "GPU" else f"{self.ranks} replicas on the CPU"

    def submit(self, step: int, batches: list[list[Any]], rate: float, number: int) -> list[Numbers]:
        """See `Strategy`."""
        if self.cfg.on_nan == "skip":
            # Running means and the like take up a batch before anybody has seen its loss.
            self._kept = [variable.numpy() for variable in self.others.values()]
        arguments = (tf.constant(rate, tf.float32), tf.constant(number, tf.int64))
        if len(batches) == 1:
            result = self._whole(self._placed(batches[0]), *arguments)
        else:
            if not self._sums:
                self._make_sums()
            for batch in batches:
                self._add(self._placed(batch))
            result = self._end(*arguments)
        each = [one.numpy().tolist() for one in self.distribution.experimental_local_results(result)]
        loss_sum, count, norm, _, good = each[0]
        if not good:
            for variable, kept in zip(self.others.values(), self._kept, strict=False):
                variable.assign(kept)
        own = tuple(one[3] for one in each)
        return [Numbers(step=step, loss_sum=loss_sum, count=count, norm=norm, own=own)]

    def settle(self) -> list[Numbers]:
        """See `Strategy`. No step outlasts `submit`."""
        return []

    def evaluate(self, batches: Iterable[list[Any]]) -> dict[str, tuple[float, float]]:
        """See `Strategy`."""
        sums: dict[str, Any] = {}
        for batch in batches:
            for name, pair in self._measure(self._placed(batch)).items():
                sums[name] = sums[name] + pair.numpy() if name in sums else pair.numpy()
        return {name: (float(total), float(count)) for name, (total, count) in sums.items()}

    def tell(self, phase: str, step: int) -> None:
        """See `Strategy`. There are no other processes."""

    def close(self) -> None:
        """See `Strategy`."""

    def _placed(self, batches: list[Any]) -> Any:
        """One batch a replica, as what `run` takes."""
        tensors = [tf.nest.map_structure(tf.convert_to_tensor, batch) for batch in batches]
        return self.distribution.experimental_distribute_values_from_function(
            lambda context: tensors[context.replica_id_in_sync_group]
        )

    def _make_sums(self) -> None:
        # One of each replica's own, added up over the replicas only when all micro-batches are in.
        kinds = [(variable.shape, variable.dtype) for variable in self.weights.values()]
        with self.distribution.scope():
            self._sums = [
                tf.Variable(
                    tf.zeros(shape, kind),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for shape, kind in [*kinds, ((), tf.float32), ((), tf.float32)]
            ]

    def _whole_on_all(self, batch: Any, rate: Any, number: Any) -> Any:
        def replica(batch: Any, rate: Any, number: Any) -> Any:
            return self._join(self._derive(batch), rate, number)

        return self.distribution.run(replica, args=(batch, rate, number))

    def _add_on_all(self, batch: Any) -> None:
        def replica(batch: Any) -> None:
            for total, value in zip(self._sums, self._derive(batch), strict=True):
                total.assign_add(value)

        self.distribution.run(replica, args=(batch,))

    def _end_on_all(self, rate: Any, number: Any) -> Any:
        def replica(rate: Any, number: Any) -> Any:
            result = self._join([total.read_value() for total in self._sums], rate, number)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            return result

        return self.distribution.run(replica, args=(rate, number))

    def _join(self, values: list[Any], rate: Any, number: Any) -> Any:
        """Add up over the replicas and finish the step. Returns its numbers, own loss sum, whether good."""
        context = tf.distribute.get_replica_context()
        sums = list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))
        loss, count, norm = self._finish(sums, rate, number)
        good = tf.math.is_finite(loss / count) & (count > 0) & tf.math.is_finite(norm)
        return tf.stack([loss, count, norm, values[-2], tf.cast(good, tf.float32)])

    def _measure_on_all(self, batch: Any) -> Any:
        found = self.distribution.run(self.job.measure, args=(batch,))
        total = tf.distribute.ReduceOp.SUM
        return {name: self.distribution.reduce(total, pair, axis=None) for name, pair in found.items()}
