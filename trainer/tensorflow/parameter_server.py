"""tf-parameter-server: workers compute steps, each by itself, on weights that parameter servers hold.

It is asynchronous by nature. A step is one worker's: it reads the weights, works through the step's samples
and changes the weights, while the other workers do the same with other samples. What it has read may be as
many steps old as there are other workers; with one worker the steps come one after the other. The chief runs
the loop and hands out the steps, with their samples; those of a worker that is lost go to another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..config import Config
from ..errors import ClusterError
from .base import Numbers, Strategy
from .cluster import Cluster, from_environment, speak
from .contract import Job
from .devices import gpus

AHEAD = 2
"""Steps for each worker that are handed out at the same time: one is computed and one waits."""


class ParameterServer(Strategy):
    """The chief's view of the cluster."""

    ranks = 1

    def __init__(self, cfg: Config, cluster: Cluster | None = None) -> None:
        super().__init__(cfg)
        self.cluster = cluster or from_environment()
        self.spread = len(self.cluster.workers)
        gpus("cpu")  # those of this host are for workers
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self.distribution = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.distribution)
        self._under_way: deque[tuple[int, Any]] = deque()

    def build(self, job: Job, batch: Any) -> None:
        """See `Strategy`."""
        super().build(job, batch)
        self._step = tf.function(self._step_on_worker, autograph=False)
        self._measure = tf.function(self._measure_on_worker, autograph=False)

    def describe(self) -> str:
        """See `Strategy`."""
        workers, servers = len(self.cluster.workers), len(self.cluster.servers)
        return (
            f"{workers} worker{'s' * (workers > 1)} and {servers} parameter server{'s' * (servers > 1)}, "
            "asynchronous: each step is one worker's"
        )

    def submit(self, step: int, batches: list[list[Any]], rate: float, number: int) -> list[Numbers]:
        """See `Strategy`. `number` cannot know yet whether steps under way will be skipped."""
        tensors = [tf.nest.map_structure(tf.convert_to_tensor, batch) for (batch,) in batches]
        arguments = (
            tensors,
            tf.constant(step, tf.int64),
            tf.constant(rate, tf.float32),
            tf.constant(number, tf.int64),
        )
        try:
            self._under_way.append((step, self.coordinator.schedule(self._step, args=arguments)))
        except tf.errors.UnavailableError as error:
            raise _lost(error) from error
        return self._take(AHEAD * self.spread - 1)

    def settle(self) -> list[Numbers]:
        """See `Strategy`."""
        return self._take(0)

    def evaluate(self, batches: Iterable[list[Any]]) -> dict[str, tuple[float, float]]:
        """See `Strategy`."""
        coming = []
        for batch in (one for each in batches for one in each):
            tensors = tf.nest.map_structure(tf.convert_to_tensor, batch)
            coming.append(self.coordinator.schedule(self._measure, args=(tensors,)))
        sums: dict[str, Any] = {}
        for value in coming:
            for name, pair in _fetch(value).items():
                sums[name] = sums[name] + pair if name in sums else pair
        return {name: (float(total), float(count)) for name, (total, count) in sums.items()}

    def tell(self, phase: str, step: int) -> None:
        """See `Strategy`."""
        self._say("phase", phase, step)

    def close(self) -> None:
        """See `Strategy`."""
        self._say("end")

    def _say(self, *words: Any) -> None:
        for device in self.cluster.devices():
            try:
                with tf.device(device):
                    speak(*words)
            except tf.errors.OpError:
                pass  # it is gone: the coordinator has to deal with that, not this line

    def _take(self, leave: int) -> list[Numbers]:
        taken = []
        while len(self._under_way) > leave:
            step, value = self._under_way.popleft()
            loss_sum, count, norm = _fetch(value).tolist()
            taken.append(Numbers(step=step, loss_sum=loss_sum, count=count, norm=norm))
        return taken

    def _step_on_worker(self, batches: list[Any], step: Any, rate: Any, number: Any) -> Any:
        def replica(batches: list[Any], step: Any, rate: Any, number: Any) -> Any:
            sums: list[Any] = []
            for batch in batches:
                # One after the other: at the same time they would take the memory of all together.
                with tf.control_dependencies(sums):
                    values = self._derive(tf.nest.map_structure(tf.identity, batch))
                sums = [total + value for total, value in zip(sums, values, strict=True)] if sums else values
            result = self._finish(sums, rate, number)
            speak("step", step, *result, rate)
            return tf.stack(result)

        return self.distribution.run(replica, args=(batches, step, rate, number))

    def _measure_on_worker(self, batch: Any) -> Any:
        return self.distribution.run(self.job.measure, args=(batch,))


def _fetch(value: Any) -> Any:
    try:
        return value.fetch()
    except tf.errors.UnavailableError as error:
        raise _lost(error) from error


def _lost(error: Exception) -> ClusterError:
    return ClusterError(
        "a parameter server does not answer, and with it the weights are lost: start again, and training "
        f"resumes from its last checkpoint\n{str(error).splitlines()[0]}"
    )
