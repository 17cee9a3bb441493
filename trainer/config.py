"""The options of a training run: one frozen dataclass, and the command line that fills it.

Each field carries its own range and help, so the flag, its check and its place in `--help` cannot disagree.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

LARGEST = 2**31 - 1


def option(
    default: Any,
    text: str,
    *,
    kind: type[int] | type[float] | type[str],
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
) -> Any:
    """A field of `Config`: its flag takes a value of `kind` from `low` to `high`, both included.

    A number's flag also takes the `words`, which stand for themselves.
    """
    metadata = {"help": text, "kind": kind, "low": low, "high": high, "choices": choices, "words": words}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that the command line says. A job file reads what it needs from it; nobody changes it."""

    task: str = option("gpt", "a task of the trainer, or the path of a job file (*.py)", kind=str)
    strategy: str = option("ddp", "how the ranks share the work", kind=str)
    size: str = option(
        "", "size of the model, in the task's own words (gpt: tiny, small, medium, large)", kind=str
    )
    sequence_length: int = option(256, "tokens in a sample", kind=int, low=1, high=1_048_576)
    steps: int = option(
        200, "optimizer steps in all, those of a resumed run included", kind=int, low=1, high=LARGEST
    )
    global_batch: int | None = option(
        None,
        "samples in a step on all ranks; default: micro-batch x accumulation x ranks",
        kind=int,
        low=1,
        high=LARGEST,
    )
    micro_batch: int | str = option(
        8,
        "samples that a rank takes at a time; auto: as many of its share of --global-batch as the GPU has "
        "memory for",
        kind=int,
        low=1,
        high=LARGEST,
        words=("auto",),
    )
    accumulation: int | None = option(
        None,
        "micro-batches in a step; default: as many as the global batch needs, else 1 (pp: one a stage)",
        kind=int,
        low=1,
        high=LARGEST,
    )
    precision: str = option(
        "fp32",
        "arithmetic of the model; the weights are kept in fp32, and fp16 scales the loss",
        kind=str,
        choices=("fp32", "bf16", "fp16"),
    )
    learning_rate: float = option(
        3e-4, "highest learning rate, reached after the warm-up", kind=float, low=0, high=1000
    )
    warmup_steps: int = option(
        10, "steps of linear warm-up before the cosine decay", kind=int, low=0, high=LARGEST
    )
    weight_decay: float = option(
        0.1, "decay of matrices; biases and norms have none", kind=float, low=0, high=1000
    )
    grad_clip: float = option(
        1.0, "largest norm of all gradients together; 0: no limit", kind=float, low=0, high=LARGEST
    )
    on_nan: str = option(
        "stop",
        "when loss or gradients are NaN or infinite: stop before they reach the weights, or skip the step",
        kind=str,
        choices=("stop", "skip"),
    )
    seed: int = option(0, "of the weights, the data's order and dropout", kind=int, low=0, high=2**32 - 1)
    checkpoint_every: int = option(
        100, "steps between checkpoints; 0: only at the end and when stopped", kind=int, low=0, high=LARGEST
    )
    checkpoint_dir: str = option(
        "", "where checkpoints are; default: $ENCAMP_RUN_DIR/checkpoints, else none", kind=str
    )
    keep_checkpoints: int = option(3, "how many complete checkpoints are kept", kind=int, low=1, high=LARGEST)
    keep_every: int = option(
        0,
        "checkpoints of steps that are a multiple of this are kept for good; 0: none is",
        kind=int,
        low=0,
        high=LARGEST,
    )
    async_checkpoints: str = option(
        "yes",
        "yes writes a checkpoint while training goes on, no lets training wait for it",
        kind=str,
        choices=("yes", "no"),
    )
    log_every: int = option(10, "steps between lines of progress", kind=int, low=1, high=LARGEST)
    eval_every: int = option(
        0, "steps between evaluations on the split held out; 0: never", kind=int, low=0, high=LARGEST
    )
    eval_batches: int = option(8, "micro-batches per rank in an evaluation", kind=int, low=1, high=LARGEST)
    reshard_after_forward: str = option(
        "auto",
        "fsdp, hsdp, fsdp+tp: yes frees gathered weights between forward and backward, no keeps them and "
        "gathers half as often, auto frees those of the blocks",
        kind=str,
        choices=("auto", "yes", "no"),
    )
    shard_ranks: int | None = option(
        None,
        "hsdp: ranks that hold a copy of the model together; default: those of a host, on one host half",
        kind=int,
        low=2,
        high=LARGEST,
    )
    tensor_parallel: int | None = option(
        None, "fsdp+tp: ranks that share each layer; default: 2", kind=int, low=2, high=LARGEST
    )
    pipeline_schedule: str = option(
        "1f1b",
        "pp: gpipe, 1f1b (keeps fewer activations) or interleaved (two stages a rank: less waiting)",
        kind=str,
        choices=("gpipe", "1f1b", "interleaved"),
    )
    offload: str = option(
        "none",
        "zero1, zero2, zero3: cpu keeps the optimizer's state in the host's memory",
        kind=str,
        choices=("none", "cpu"),
    )
    bucket_mb: int = option(
        25,
        "ddp, zero1, zero2, zero3, horovod: gradients travel in messages of about so many MB",
        kind=int,
        low=1,
        high=4096,
    )
    gradient_compression: str = option(
        "none",
        "ddp: fp16, bf16 or powersgd, horovod: fp16; gradients travel smaller, for slow links between hosts",
        kind=str,
        choices=("none", "fp16", "bf16", "powersgd"),
    )
    activation_checkpointing: str = option(
        "no",
        "yes computes a block's activations again in the backward pass, which saves memory for time",
        kind=str,
        choices=("no", "yes"),
    )
    compile: str = option(
        "no",
        "yes lets torch.compile, or XLA under tf-*, make kernels for the model, which takes minutes at first",
        kind=str,
        choices=("no", "yes"),
    )
    data_dir: str = option(
        "", "folder with the task's data; gpt without one reads Python's own sources", kind=str
    )
    workers: int = option(
        0,
        "processes per rank, threads under tf-*, that prepare data; 0: the rank itself does",
        kind=int,
        low=0,
        high=256,
    )
    prefetch: int = option(
        2, "micro-batches that each of these processes has ready", kind=int, low=1, high=1024
    )
    device: str = option(
        "auto", "auto: a GPU for each rank where there is one", kind=str, choices=("auto", "cpu", "cuda")
    )


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m trainer`."""
    result = argparse.ArgumentParser(
        prog="trainer",
        description="Trains a task on this process alone, or on all ranks under torchrun.",
        epilog="example: torchrun --nproc-per-node 2 -m trainer --task gpt --size tiny --steps 50",
        allow_abbrev=False,
    )
    for item in fields(Config):
        flag = "--" + item.name.replace("_", "-")
        metadata = item.metadata
        text = (
            metadata["help"]
            if item.default in (None, "", MISSING)
            else f"{metadata['help']} (default: {item.default})"
        )
        result.add_argument(
            flag,
            dest=item.name,
            type=_converter(item),
            choices=metadata["choices"] or None,
            default=item.default,
            metavar=None if metadata["choices"] else {int: "N", float: "X", str: "TEXT"}[metadata["kind"]],
            help=text.replace("%", "%%"),
        )
    return result


def parse(argv: Sequence[str]) -> Config:
    """The options in `argv`. Exits with status 2 when they are wrong, as argparse does."""
    return Config(**vars(parser().parse_args(argv)))


def _converter(item: Field[Any]) -> Callable[[str], Any]:
    kind, low, high = item.metadata["kind"], item.metadata["low"], item.metadata["high"]
    if kind is str:
        return str
    noun = "a whole number" if kind is int else "a number"
    words = item.metadata["words"]

    def convert(word: str) -> Any:
        if word in words:
            return word
        try:
            value = kind(word)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # also false for NaN
            # Nobody needs to know of that limit who has not met it.
            open_end = high == LARGEST and not value > high
            span = f"{noun} of at least {low:g}" if open_end else f"{noun} from {low:g} to {high:.15g}"
            span = " or ".join((span, *words))
            raise argparse.ArgumentTypeError(f"must be {span}, not {word!r}")
        return value

    return convert
