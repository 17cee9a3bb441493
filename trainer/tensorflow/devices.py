"""Which of this host's devices the process computes on. Called before TensorFlow has used any."""

from __future__ import annotations

import os
import resource
from typing import Any

import tensorflow as tf

from ..errors import UsageError


def gpus(choice: str) -> list[Any]:
    """The GPUs to compute on, none for the CPU. `choice` is auto, cpu or cuda. Raises UsageError."""
    found = [] if choice == "cpu" else list(tf.config.list_physical_devices("GPU"))
    if choice == "cuda" and not found:
        raise UsageError(f"--device cuda: TensorFlow {tf.__version__} sees no GPU here")
    _show(found)
    for gpu in found:
        # Else TensorFlow takes all memory at once, and what is shown of it says nothing.
        tf.config.experimental.set_memory_growth(gpu, True)
    return found


def own_gpu(choice: str, number: int) -> list[Any]:
    """The GPU of worker `number` of this host, as a list. Raises UsageError when it has none."""
    found = gpus(choice)
    if not found:
        return []
    if len(found) == 1:
        return found  # the launcher has chosen it
    if number >= len(found):
        raise UsageError(
            f"worker {number} has no GPU: this host shows {len(found)}; start at most so many workers on it"
        )
    _show([found[number]])
    return [found[number]]


def divide_cpu(parts: int) -> None:
    """Let the CPU be `parts` devices."""
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or ()) != parts:
        each = [tf.config.LogicalDeviceConfiguration() for _ in range(parts)]
        tf.config.set_logical_device_configuration(cpu, each)


def _show(found: list[Any]) -> None:
    if found != tf.config.get_visible_devices("GPU"):
        tf.config.set_visible_devices(found, "GPU")


def limit_threads() -> None:
    """Keep to the number of threads that the launcher has given each process of this host."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    known = tf.config.threading.get_intra_op_parallelism_threads()
    if given.isdigit() and int(given) not in (0, known):
        tf.config.threading.set_intra_op_parallelism_threads(int(given))


def peak_memory() -> int:
    """The most bytes in use so far: of all GPUs' memory together, or on a CPU of this process."""
    used = [gpu.name.partition("device:")[2] for gpu in tf.config.list_logical_devices("GPU")]
    if used:
        return sum(tf.config.experimental.get_memory_info(name)["peak"] for name in used)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
