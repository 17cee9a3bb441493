"""The keys of a profile: their types, their ranges, and what is said about a value that does not fit.

The keys of `[train]` are the flags of the built-in trainer. They are written down here because this folder
does not import the trainer; a test holds the two lists together.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .errors import show

LARGEST = 2**31 - 1
"""Upper limit of counts that need none of their own."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key with a plain value.

    `minimum` and `maximum` are inclusive; `choices` are for strings. A number can also be one of the `words`.
    """

    name: str
    type: type[int] | type[float] | type[str]
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What a value must be, as the end of a sentence."""
        if self.words:
            return " or ".join((replace(self, words=()).allowed, *map(json_word, self.words)))
        if self.choices:
            return "must be " + either(json_word(choice) for choice in self.choices)
        if self.type is str:
            return 'must be a string, in quotes: "..."'
        noun = "a whole number" if self.type is int else "a number"
        if self.minimum is None and self.maximum is None:
            return f"must be {noun}"
        if self.maximum is None or self.maximum == LARGEST:
            return f"must be {noun} of at least {self.minimum:g}"
        return f"must be {noun} from {self.minimum:g} to {self.maximum:.15g}"

    def problem(self, value: object) -> str | None:
        """What is wrong with `value`, or None."""
        if self.type is str:
            if not isinstance(value, str):
                return self.allowed
            if self.choices and value not in self.choices:
                return self.allowed
            return text_problem(value)
        if isinstance(value, str) and value in self.words:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.type is int else (int, float)):
            return self.allowed
        if isinstance(value, float) and not math.isfinite(value):
            return self.allowed
        if self.maximum is not None and value > self.maximum:
            # Nobody needs to know of that limit who has not met it.
            return f"{self.allowed} and at most {LARGEST}" if self.maximum == LARGEST else self.allowed
        if self.minimum is not None and value < self.minimum:
            return self.allowed
        return None


STRATEGIES = (
    "ddp",
    "fsdp",
    "hsdp",
    "zero1",
    "zero2",
    "zero3",
    "tp",
    "fsdp+tp",
    "pp",
    "dp",
    "horovod",
    "tf-mirrored",
    "tf-parameter-server",
)
"""How the ranks share the work."""

TASKS = ("gpt", "images", "regression")
"""The jobs that the trainer ships with; a path that ends in `.py` names the user's own, on the host."""

TRAIN_KEYS: tuple[Key, ...] = (
    Key("size", str),
    Key("sequence_length", int, 1, 1_048_576),
    Key("steps", int, 1, LARGEST),
    Key("global_batch", int, 1, LARGEST),
    Key("micro_batch", int, 1, LARGEST, words=("auto",)),
    Key("accumulation", int, 1, LARGEST),
    Key("precision", str, choices=("fp32", "bf16", "fp16")),
    Key("learning_rate", float, 0, 1000),
    Key("warmup_steps", int, 0, LARGEST),
    Key("weight_decay", float, 0, 1000),
    Key("grad_clip", float, 0, LARGEST),
    Key("on_nan", str, choices=("stop", "skip")),
    Key("seed", int, 0, 2**32 - 1),
    Key("checkpoint_every", int, 0, LARGEST),
    Key("checkpoint_dir", str),
    Key("keep_checkpoints", int, 1, LARGEST),
    Key("keep_every", int, 0, LARGEST),
    Key("async_checkpoints", str, choices=("yes", "no")),
    Key("log_every", int, 1, LARGEST),
    Key("eval_every", int, 0, LARGEST),
    Key("eval_batches", int, 1, LARGEST),
    Key("reshard_after_forward", str, choices=("auto", "yes", "no")),
    Key("shard_ranks", int, 2, LARGEST),
    Key("tensor_parallel", int, 2, LARGEST),
    Key("pipeline_schedule", str, choices=("gpipe", "1f1b", "interleaved")),
    Key("offload", str, choices=("none", "cpu")),
    Key("bucket_mb", int, 1, 4096),
    Key("gradient_compression", str, choices=("none", "fp16", "bf16", "powersgd")),
    Key("activation_checkpointing", str, choices=("no", "yes")),
    Key("compile", str, choices=("no", "yes")),
    Key("data_dir", str),
    Key("workers", int, 0, 256),
    Key("prefetch", int, 1, 1024),
    Key("device", str, choices=("auto", "cpu", "cuda")),
)


MEANT_FOR: Mapping[str, tuple[object, tuple[str, ...]]] = {
    "reshard_after_forward": ("auto", ("fsdp", "hsdp", "fsdp+tp")),
    "shard_ranks": (None, ("hsdp",)),
    "tensor_parallel": (None, ("fsdp+tp",)),
    "pipeline_schedule": ("1f1b", ("pp",)),
    "offload": ("none", ("zero1", "zero2", "zero3")),
    "bucket_mb": (25, ("ddp", "zero1", "zero2", "zero3", "horovod")),
    "gradient_compression": ("none", ("ddp", "horovod")),
    "compile": ("no", tuple(name for name in STRATEGIES if name not in ("dp", "zero3"))),
}
"""Keys that mean something to some strategies only: the value that they have anyway, and the strategies."""


def strategy_problem(name: str, value: object, strategy: str) -> str | None:
    """Why the key `name` of [train] cannot be `value` under `strategy`, or None."""
    default, meant_for = MEANT_FOR.get(name, (value, ()))
    if value == default or strategy in meant_for or strategy not in STRATEGIES:
        return None
    return f"means nothing under {json_word(strategy)}, only under {either(meant_for)}: leave it out"


def text_problem(value: str) -> str | None:
    """Why a string cannot be given to a process as an argument or in its environment, or None."""
    if "\0" in value:
        return "must not contain a NUL character"
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "..."?` for the known word nearest to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {json_word(close[0])}?" if close else ""


def key_word(name: str) -> str:
    """`name` as a part of a dotted key: as it is, or in quotes when TOML needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else show(name)


def json_word(word: str) -> str:
    """`word` in quotes."""
    return f'"{word}"'


def either(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last
