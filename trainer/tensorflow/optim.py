"""The optimizers: AdamW with the arithmetic of torch's, and the job's own of Keras.

Keras' AdamW adds epsilon to another quantity than torch's: the fused kernel of both divides by
`sqrt(v) + epsilon` where the paper (Kingma and Ba, arXiv:1412.6980, algorithm 1) and torch divide by
`sqrt(v / (1 - beta2^t)) + epsilon`. With `epsilon * sqrt(1 - beta2^t)` in its place the kernel computes the
latter. The decay is that of Loshchilov and Hutter (arXiv:1711.05101): the weights times `1 - rate * decay`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import keras
import tensorflow as tf

from ..config import Config
from ..contract import Task
from ..errors import JobError, UsageError

BETAS = (0.9, 0.95)
EPSILON = 1e-8


class Optimizer(ABC):
    """Moves the weights. Built in the scope of the strategy."""

    highest: float
    """The learning rate that it was built with, of which the schedule takes a share."""

    @abstractmethod
    def prepare(self, rate: float) -> None:
        """Called on the host before a step."""

    @abstractmethod
    def update(self, gradients: list[Any], rate: Any, number: Any, good: Any) -> None:
        """Take a step unless `good` is false. Called by each replica, with what is the same on all.

        `gradients` are those of the mean loss, over all replicas. `number` counts the steps from 1 on.
        """

    @abstractmethod
    def variables(self) -> dict[str, Any]:
        """What a checkpoint holds of it, by name."""


class AdamW(Optimizer):
    """AdamW with weight decay on matrices only. `weights` are variables by name."""

    def __init__(self, strategy: Any, weights: dict[str, Any], cfg: Config) -> None:
        self.highest = cfg.learning_rate
        self._weights = weights
        self._moments: dict[str, tuple[Any, Any]] = {}
        self._decays = [cfg.weight_decay if len(weight.shape) >= 2 else 0.0 for weight in weights.values()]
        for name, weight in weights.items():
            # On the parameter server that has the weight: the update then happens there.
            with strategy.extended.colocate_vars_with(weight):
                first, second = (
                    tf.Variable(tf.zeros(weight.shape, weight.dtype), trainable=False) for _ in range(2)
                )
            self._moments[name] = (first, second)

    def prepare(self, rate: float) -> None:
        """See `Optimizer`. The rate comes with the step."""

    def update(self, gradients: list[Any], rate: Any, number: Any, good: Any) -> None:
        """See `Optimizer`."""
        tf.distribute.get_replica_context().merge_call(self._merged, args=(gradients, rate, number, good))

    def variables(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {
            f"{name}/{kind}": variable
            for name, pair in self._moments.items()
            for kind, variable in zip(("exp_avg", "exp_avg_sq"), pair, strict=True)
        }

    def _merged(self, strategy: Any, gradients: list[Any], rate: Any, number: Any, good: Any) -> None:
        for (name, weight), gradient, decay in zip(
            self._weights.items(), gradients, self._decays, strict=True
        ):
            arguments = (*self._moments[name], gradient, rate, number, good)
            strategy.extended.update(weight, _update, args=arguments, kwargs={"decay": decay})


def _update(
    weight: Any, first: Any, second: Any, gradient: Any, rate: Any, number: Any, good: Any, *, decay: float
) -> None:
    def take() -> Any:
        kind = weight.dtype
        power1, power2 = (tf.pow(tf.constant(beta, kind), tf.cast(number, kind)) for beta in BETAS)
        step = tf.cast(rate, kind)
        if decay:
            weight.assign(weight * (1 - step * decay))
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=power1,
            beta2_power=power2,
            lr=step,
            beta1=tf.constant(BETAS[0], kind),
            beta2=tf.constant(BETAS[1], kind),
            epsilon=EPSILON * tf.sqrt(1 - power2),
            grad=tf.cast(gradient, kind),
        )
        return tf.constant(True)

    tf.cond(good, take, lambda: tf.constant(False))


class OwnOptimizer(Optimizer):
    """The optimizer that the job has built. Raises JobError when it is none that the trainer can drive."""

    def __init__(self, strategy: Any, model: Any, task: Task, cfg: Config) -> None:
        assert task.build_optimizer is not None
        optimizer = task.build_optimizer(model, cfg)
        what = f"job {task.name}: build_optimizer returned"
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise JobError(f"{what} a {type(optimizer).__name__}, not a keras.optimizers.Optimizer")
        if not isinstance(model, keras.Layer):
            raise JobError(
                f"{what} an optimizer of Keras for a tf.Module: build a keras.Model, or leave it out"
            )
        if not isinstance(optimizer._learning_rate, keras.Variable):
            raise JobError(
                f"{what} an optimizer with a schedule of its own: give it a number, which --warmup-steps "
                "and --steps turn into a schedule"
            )
        if cfg.on_nan == "skip":
            raise UsageError(
                "--on-nan skip needs the trainer's own optimizer: one of Keras takes every step; leave "
                "build_optimizer out, or use --on-nan stop"
            )
        optimizer.build(model.trainable_variables)
        self.optimizer = optimizer
        self.highest = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        self._weights = model.trainable_variables
        self._replicas = strategy.num_replicas_in_sync

    def prepare(self, rate: float) -> None:
        """See `Optimizer`."""
        self.optimizer.learning_rate = rate

    def update(self, gradients: list[Any], rate: Any, number: Any, good: Any) -> None:
        """See `Optimizer`. A step that is not good takes gradients of zero: training stops after it."""
        del rate, number  # it has its own
        # It adds up the gradients of all replicas itself, and they are added up already.
        shares = [tf.where(good, gradient / self._replicas, 0.0) for gradient in gradients]
        self.optimizer.apply(shares, self._weights)

    def variables(self) -> dict[str, Any]:
        """See `Optimizer`."""
        rate = self.optimizer._learning_rate
        return {str(n): one.value for n, one in enumerate(self.optimizer.variables) if one is not rate}
