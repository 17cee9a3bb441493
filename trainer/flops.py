"""Model FLOPs utilisation: what a model needs in arithmetic, as a share of what its GPUs could do.

MFU as in PaLM (Chowdhery et al. 2022, appendix B): the multiplications and additions of matrix products,
convolutions and attention, forward and backward, per second, by the peak of dense arithmetic in the precision
of the run. What is computed again to save memory does not count. Products are counted exactly, by torch's
formulas, and not estimated; attention counts in full, although a causal one needs half of it. For a
transformer this comes to 6 N + 12 L h q t for each token: N numbers in its matrices, L layers of h heads,
each q wide, t tokens in a sample.
"""

from __future__ import annotations

import multiprocessing
import re
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import default_collate

from .contract import Task
from .data import to_device
from .progress import Progress
from .world import World

UNKNOWN = "unknown"

TERA = 1e12

DEADLINE = 60.0
"""Seconds that counting may take."""

PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    (r"NVIDIA (B200|GB200).*", {"bf16": 2250, "fp16": 2250, "fp32": 75}),
    (r"NVIDIA (H200|H100 80GB HBM3|GH200 .*)", {"bf16": 989, "fp16": 989, "fp32": 67}),
    (r"NVIDIA (H100|H200) NVL", {"bf16": 835, "fp16": 835, "fp32": 60}),
    (r"NVIDIA H100 PCIe", {"bf16": 756, "fp16": 756, "fp32": 51}),
    (r"(NVIDIA )?A100-(SXM4|PCIE|PG509).*|NVIDIA A100 80GB PCIe", {"bf16": 312, "fp16": 312, "fp32": 19.5}),
    (r"NVIDIA A30", {"bf16": 165, "fp16": 165, "fp32": 10.3}),
    (r"NVIDIA A40", {"bf16": 149.7, "fp16": 149.7, "fp32": 37.4}),
    (r"NVIDIA A10", {"bf16": 125, "fp16": 125, "fp32": 31.2}),
    (r"NVIDIA L40S", {"bf16": 362, "fp16": 362, "fp32": 91.6}),
    (r"NVIDIA L40", {"bf16": 181, "fp16": 181, "fp32": 90.5}),
    (r"NVIDIA L4", {"bf16": 121, "fp16": 121, "fp32": 30.3}),
    (r"NVIDIA RTX 6000 Ada Generation", {"bf16": 364.2, "fp16": 364.2, "fp32": 91.1}),
    (r"NVIDIA RTX A6000", {"bf16": 154.8, "fp16": 154.8, "fp32": 38.7}),
    (r"NVIDIA GeForce RTX 5090", {"bf16": 209.5, "fp16": 209.5, "fp32": 104.8}),
    (r"NVIDIA GeForce RTX 4090", {"bf16": 165.2, "fp16": 165.2, "fp32": 82.6}),
    (r"NVIDIA GeForce RTX 3090", {"bf16": 71, "fp16": 71, "fp32": 35.6}),
    (r"Tesla V100-SXM.*", {"fp16": 125, "fp32": 15.7}),
    (r"Tesla V100-PCIE.*", {"fp16": 112, "fp32": 14}),
    (r"Tesla T4", {"fp16": 65, "fp32": 8.1}),
)
"""Name of a GPU, whole, and its dense peak in TFLOPS: tensor cores that add up in fp32, and plain fp32.

Sources: NVIDIA's data sheets of B200, H200, H100, A100, A30, A40, A10, L40S, L40, L4, V100 and T4, halved
where they give figures with sparsity; its Ada, Ampere and Blackwell architecture whitepapers for the RTX
ones.
"""


def peak(precision: str, device: torch.device) -> float | None:
    """The FLOP/s that `device` could do at best, or None where that is not known."""
    if device.type != "cuda" or (precision == "fp32" and torch.backends.cuda.matmul.allow_tf32):
        return None
    return named_peak(torch.cuda.get_device_name(device), precision)


def named_peak(name: str, precision: str) -> float | None:
    """The same for a GPU of that name. A part of a GPU has another name, and is not known."""
    for pattern, peaks in PEAKS:
        if re.fullmatch(pattern, name) and "MIG" not in name:
            return peaks[precision] * TERA if precision in peaks else None
    return None


class Counting:
    """Finds the FLOPs of forward and backward pass for one sample, of `samples` at the dataset's beginning.

    It counts with tensors that have a shape and no content, in a process of its own, while this one goes on:
    the model, what the job remembers between its calls, and random numbers stay as they are.
    """

    def __init__(self, model: Any, task: Task, dataset: Any, samples: int) -> None:
        context = multiprocessing.get_context("fork")
        self._end, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_tell, args=(theirs, model, task, dataset, samples), daemon=True
        )
        with warnings.catch_warnings():
            # That this process has threads: data workers are forked like this too.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def result(self) -> tuple[float | None, str]:
        """The number, or None and why there is none. Waits for it. To be called once."""
        try:
            if self._end.poll(DEADLINE):
                found: tuple[float | None, str] = self._end.recv()
                return found
            return None, f"it took longer than {DEADLINE:.0f} s"
        except EOFError:
            return None, "the process that counts died"
        finally:
            self.close()

    def close(self) -> None:
        """End the process that counts, if it still does."""
        self._process.kill()
        self._process.join()
        self._end.close()


def _tell(end: Connection, model: Any, task: Task, dataset: Any, samples: int) -> None:
    try:
        end.send((count(model, task, dataset, samples), ""))
    except Exception as error:  # of the job's own code, which may raise anything; this process ends with it
        end.send((None, f"{type(error).__name__}: {error}"))


def count(model: Any, task: Task, dataset: Any, samples: int) -> float:
    """What `Counting` finds, in this process: `model` loses its content, and new tensors have none."""
    from torch.utils.flop_counter import FlopCounterMode

    batch = (task.collate or default_collate)([dataset[number % len(dataset)] for number in range(samples)])
    model = model.to("meta")
    torch.set_default_device("meta")
    # What is fused on one device and not on another is taken apart, and counts the same on all.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        batch = to_device(batch, torch.device("meta"))
        loss, _ = task.loss(task.forward(model, batch), batch)
        loss.sum().backward()
    return float(counter.get_total_flops()) / samples


class Utilisation:
    """`per_sample` FLOPs against a `peak` of all ranks together, in FLOP/s; either may not be known."""

    def __init__(self, per_sample: float | None = None, peak: float | None = None) -> None:
        self.per_sample, self.peak = per_sample, peak

    def share(self, samples_per_second: float) -> float | str:
        """The MFU, from 0 to 1, or "unknown"."""
        if self.per_sample is None or self.peak is None:
            return UNKNOWN
        return self.per_sample * samples_per_second / self.peak


def agree(counting: Counting | None, precision: str, world: World, progress: Progress) -> Utilisation:
    """What the ranks' GPUs can do together, and what rank 0 has counted. Called by all ranks together."""
    if world.device.type != "cuda":
        return Utilisation()
    told: list[Any] = [None] * world.size
    own = (peak(precision, world.device), counting.result() if counting is not None else (None, ""))
    dist.all_gather_object(told, own)
    peaks = [each for each, _ in told]
    per_sample, fault = told[0][1]
    if fault:
        progress.say(f"MFU stays unknown, since the model could not be counted: {fault}")
    return Utilisation(per_sample, None if None in peaks else sum(peaks))
