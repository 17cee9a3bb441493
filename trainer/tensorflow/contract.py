"""The contract between a job and the trainer under TensorFlow, and how a job keeps it.

The three functions are those of `..contract`, over TensorFlow's things:

    build_model(cfg)            -> keras.Model or keras.Layer, or a tf.Module that can be called
    build_dataset(cfg, split)   -> something with len() and [index]; samples are NumPy arrays, numbers, or
                                tuples, lists or dictionaries of these; float64 becomes float32
    loss(output, batch)         -> (sum of the losses, how many were summed)

Optional:

    forward(model, batch, training=False)
                                -> output; `training` may be left out. Default: as in `..contract`, and Keras
                                is told whether it trains
    build_optimizer(model, cfg) -> keras.optimizers.Optimizer; default: AdamW, decay on matrices only
    evaluate(output, batch)     -> {"name": (sum, count)}
    collate(samples)            -> batch of NumPy arrays; default: stacks them

Forward and loss become a graph, without AutoGraph as in Keras: what depends on a tensor's value needs
`tf.cond`, not `if`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .. import contract
from ..config import Config
from ..contract import Framework, Task
from ..errors import JobError

SMALLEST = """\
the smallest job file for TensorFlow is

    import keras
    import numpy as np
    import tensorflow as tf

    def build_model(cfg):
        return keras.Sequential([keras.layers.Dense(1)])

    def build_dataset(cfg, split):
        return [(np.random.rand(4), np.random.rand(1)) for _ in range(1000)]

    def loss(output, batch):
        target = batch[-1]
        return tf.reduce_sum((output - target) ** 2), tf.size(target)
"""

TENSORFLOW = Framework(package=__package__ or "", tasks=("gpt",), smallest=SMALLEST)


def load(name: str) -> Task:
    """The job of that name or path. Raises UsageError and JobError, as `..contract.load` does."""
    try:
        return contract.load(name, TENSORFLOW)
    except JobError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "torch":
            raise JobError(
                f"job {name} imports torch: under tf-mirrored and tf-parameter-server a job is written for "
                f"TensorFlow; use another strategy, or\n{SMALLEST}"
            ) from error
        raise


class Job:
    """A task, and what the trainer asks of it. `model` is what it has built."""

    def __init__(self, task: Task, cfg: Config) -> None:
        self.task = task
        self.cfg = cfg
        self.model: Any = None
        self._forward: Callable[[Any, Any, bool], Any] = _default_forward
        if task.forward is not contract.default_forward:
            given: Callable[..., Any] = task.forward
            knows = _knows_training(given)
            self._forward = lambda model, batch, training: (
                given(model, batch, training=training) if knows else given(model, batch)
            )

    def build(self, batch: Any) -> None:
        """Build the model and try it with `batch`, which makes all of its variables. Raises JobError."""
        model = self.task.build_model(self.cfg)
        name = f"job {self.task.name}: build_model returned a"
        if not isinstance(model, keras.Layer | tf.Module) or not callable(model):
            what = f"{type(model).__module__}.{type(model).__qualname__}"
            raise JobError(
                f"{name} {what}, which is no Keras model: --strategy {self.cfg.strategy} trains those of "
                f"TensorFlow; use another strategy for a model of torch\n{SMALLEST}"
            )
        if self.cfg.precision != "fp32" and not isinstance(model, keras.Layer):
            raise JobError(
                f"{name} tf.Module, which knows nothing of --precision {self.cfg.precision}: that is a "
                "policy of Keras' layers; build a keras.Model, or use fp32"
            )
        self.model = model
        output = self._forward(model, batch, False)
        self._check_loss(self.task.loss(output, batch))
        if not model.trainable_variables:
            raise JobError(f"{name} model without parameters to train")

    def compute(self, batch: Any, training: bool) -> tuple[Any, Any, Any]:
        """Output, loss sum and count of `batch`, the latter two as float32 without dimensions."""
        output = self._forward(self.model, batch, training)
        loss, count = self.task.loss(output, batch)
        return output, _number(loss), _number(count)

    def measure(self, batch: Any) -> dict[str, Any]:
        """Sum and count of the loss, and of what the job's `evaluate` adds: each a tensor of two numbers."""
        output, loss, count = self.compute(batch, False)
        found = {"loss": tf.stack([loss, count])}
        if self.task.evaluate is not None:
            for name, (total, number) in self.task.evaluate(output, batch).items():
                found[name] = tf.stack([_number(total), _number(number)])
        return found

    def _check_loss(self, result: Any) -> None:
        what = f"job {self.task.name}: loss(output, batch) must return (loss_sum, count)"
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise JobError(f"{what}, and returned a {type(result).__name__}")
        loss, count = result
        if not tf.is_tensor(loss) or loss.shape.num_elements() != 1:
            raise JobError(f"{what}: the first must be a tensor with the sum of the losses, a single number")
        if not isinstance(count, int | float) and not (
            tf.is_tensor(count) and count.shape.num_elements() == 1
        ):
            raise JobError(f"{what}: the second must say how many losses were summed, a single number")


def _number(value: Any) -> Any:
    return tf.reshape(tf.cast(value, tf.float32), [])


def _default_forward(model: Any, batch: Any, training: bool) -> Any:
    inputs = batch[:-1] if isinstance(batch, tuple | list) else (batch,)
    if isinstance(model, keras.Layer) or _knows_training(model.__call__):
        return model(*inputs, training=training)
    return model(*inputs)


def _knows_training(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    return "training" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
