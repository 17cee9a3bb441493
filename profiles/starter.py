"""What a profile of one's own begins with: a commented profile, and a job file that trains as it is.

The texts lie in `starters/`; here they are filled in, and nothing is written.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from .keys import STRATEGIES

FOLDER = Path(__file__).parent / "starters"


@dataclass(frozen=True, slots=True)
class Example:
    """What differs in the profile from example to example. `more` is whole lines of [train]."""

    description: str
    micro_batch: int
    learning_rate: str
    steps: int = 500
    more: str = ""


EXAMPLES = {
    "regression": Example("a plain regression", 32, "3e-3"),
    "image-classifier": Example("an image classifier", 32, "3e-3"),
    "gpt": Example(
        "a language model on text",
        8,
        "3e-3",
        more="# Bytes that the model looks back.\nsequence_length = 128\n",
    ),
}
"""The first is what one gets without asking for another."""


def job_text(example: str) -> str:
    """The job file of an example."""
    return (FOLDER / f"{example}.py.txt").read_text(encoding="utf-8")


def profile_text(example: str, name: str, job: Path) -> str:
    """A profile called `name` whose job file is `job`, an absolute path: its folder is sent to the hosts."""
    chosen = EXAMPLES[example]
    values = {
        "NAME": name,
        "FILE": job.name,
        "DESCRIPTION": chosen.description,
        "STRATEGIES": "\n# ".join(textwrap.wrap(", ".join(STRATEGIES), 100)),
        "TASK": _quoted(job.name),
        "FOLDER": _quoted(str(job.parent)),
        "MICRO_BATCH": str(chosen.micro_batch),
        "LEARNING_RATE": chosen.learning_rate,
        "STEPS": str(chosen.steps),
        "MORE": chosen.more,
    }
    text = (FOLDER / "profile.toml.txt").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _quoted(word: str) -> str:
    """`word` as a string of TOML, which writes what JSON does not, DEL, in JSON's way too."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")
