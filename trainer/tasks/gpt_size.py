"""The sizes of the GPT, which is written in torch and in TensorFlow: what both have in common."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ..config import Config
from ..errors import UsageError

VOCABULARY = 256
"""The tokens are bytes: nothing to train or to download first."""

VALID_SHARE = 0.05
"""Share of the text, at its end, that training never sees."""


@dataclass(frozen=True)
class Size:
    """`width` is a multiple of `heads`."""

    layers: int
    heads: int
    width: int


SIZES = {
    "tiny": Size(layers=2, heads=4, width=64),  # 0.1 M parameters, the embeddings not counted
    "small": Size(layers=6, heads=6, width=384),  # 11 M
    "medium": Size(layers=12, heads=12, width=768),  # 85 M, the shape of GPT-2
    "large": Size(layers=24, heads=16, width=1024),  # 302 M, the shape of GPT-2 medium
}


def chosen(cfg: Config) -> Size:
    """The size that the options ask for. Raises UsageError."""
    name = cfg.size or "tiny"
    if name not in SIZES:
        close = difflib.get_close_matches(name, SIZES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SIZES)}"
        raise UsageError(f"--size {name}: gpt has no such size; {hint}")
    return SIZES[name]
