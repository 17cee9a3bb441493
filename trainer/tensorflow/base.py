"""What the loop asks of a strategy under TensorFlow, and the arithmetic of a step that both of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..config import Config
from .contract import Job
from .optim import AdamW, Optimizer, OwnOptimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """What is known of a step that has been made. It has changed no weight if one of them is not finite."""

    step: int
    loss_sum: float
    count: float
    norm: float
    own: tuple[float, ...] = ()
    """The loss sum of each replica, where it is known."""


class Strategy(ABC):
    """A model and its optimizer under one of TensorFlow's strategies, `distribution`.

    `build` comes first. A step may still be under way when `submit` returns; `settle` waits for it.
    """

    ranks: int
    """How many take samples of their own in a step."""
    spread: int
    """How many compute at the same time."""
    distribution: Any
    model: Any
    optimizer: Optimizer
    parameter_count: int

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    def build(self, job: Job, batch: Any) -> None:
        """Build model and optimizer; `batch` is one to try the model with. Raises JobError."""
        self.job = job
        keras.utils.clear_session()  # the names of layers count from here on: a resumed run finds them again
        keras.utils.set_random_seed(self.cfg.seed)
        keras.config.set_dtype_policy("mixed_bfloat16" if self.cfg.precision == "bf16" else "float32")
        with self.distribution.scope():
            job.build(tf.nest.map_structure(tf.convert_to_tensor, batch))
            self.model = job.model
            self.weights = named(self.model.trainable_variables)
            if job.task.build_optimizer is None:
                self.optimizer = AdamW(self.distribution, self.weights, self.cfg)
            else:
                self.optimizer = OwnOptimizer(self.distribution, self.model, job.task, self.cfg)
        trainable = [id(variable) for variable in self.weights.values()]
        self.others = {
            name: variable
            for name, variable in named(self.model.variables).items()
            if id(variable) not in trainable
        }
        """Variables that are not trained: running means, states of random numbers."""
        self.parameter_count = sum(variable.shape.num_elements() for variable in self.weights.values())
        self._derive: Callable[[Any], list[Any]] = self._gradients
        if self.cfg.compile == "yes":
            self._derive = tf.function(self._gradients, autograph=False, jit_compile=True)

    @abstractmethod
    def describe(self) -> str:
        """Who computes, for people."""

    @abstractmethod
    def submit(self, step: int, batches: list[list[Any]], rate: float, number: int) -> list[Numbers]:
        """Start a step: for each of its micro-batches, one batch a rank. Returns those that are over.

        `rate` is the learning rate; `number` counts the steps that have changed weights, this one included.
        """

    @abstractmethod
    def settle(self) -> list[Numbers]:
        """Wait for all steps that are under way."""

    @abstractmethod
    def evaluate(self, batches: Iterable[list[Any]]) -> dict[str, tuple[float, float]]:
        """Sum and count of the loss and of what the job's `evaluate` adds, over all batches."""

    @abstractmethod
    def tell(self, phase: str, step: int) -> None:
        """Let processes that only help know what the training is at."""

    @abstractmethod
    def close(self) -> None:
        """Called at the end, however that is."""

    def variables(self) -> dict[str, Any]:
        """All that a checkpoint holds, by name."""
        model = {f"model/{name}": variable for name, variable in (self.weights | self.others).items()}
        return model | {f"optimizer/{name}": value for name, value in self.optimizer.variables().items()}

    def _gradients(self, batch: Any) -> list[Any]:
        """Gradients of the loss sum of a batch, then that sum and the count."""
        variables = list(self.weights.values())
        with tf.GradientTape() as tape:
            _, loss, count = self.job.compute(batch, True)
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [*(tf.convert_to_tensor(gradient) for gradient in gradients), loss, count]

    def _finish(self, sums: list[Any], rate: Any, number: Any) -> list[Any]:
        """Clip the gradients of the mean and take the optimizer's step. Returns loss sum, count and norm."""
        *gradients, loss, count = sums
        means = [gradient / tf.cast(count, gradient.dtype) for gradient in gradients]
        norm = tf.linalg.global_norm(means)
        good = tf.math.is_finite(loss / count) & (count > 0) & tf.math.is_finite(norm)
        if self.cfg.grad_clip:
            share = tf.minimum(self.cfg.grad_clip / (norm + 1e-6), 1.0)
            means = [mean * tf.cast(share, mean.dtype) for mean in means]
        self.optimizer.update(means, rate, number, good)
        return [loss, count, norm]


def named(variables: Iterable[Any]) -> dict[str, Any]:
    """TensorFlow's own variables by name, those of Keras unpacked, in a fixed order."""
    found: dict[str, Any] = {}
    for variable in variables:
        keras_owns = isinstance(variable, keras.Variable)
        name = variable.path if keras_owns else variable.name.partition(":")[0]
        unique, more = name, 1
        while unique in found:
            more += 1
            unique = f"{name}.{more}"
        found[unique] = variable.value if keras_owns else variable
    return found
