"""What single values of a profile must be. Each function says what is wrong with a value, or None."""

from __future__ import annotations

import difflib
import re

from .keys import STRATEGIES, TASKS, Key, did_you_mean, either, json_word

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_INTERFACE = re.compile(r"[^\s/\0-\x1f]{1,15}\Z")

_OURS = re.compile(
    r"ENCAMP_.*\Z|(LOCAL_|GROUP_|ROLE_)?RANK\Z|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE\Z|MASTER_(ADDR|PORT)\Z"
    r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE|ERROR_FILE)\Z"
)
"""Variables that the launcher sets for each rank."""

_FAMILIES = {
    **dict.fromkeys(("deepspeed", "zero"), ("zero1", "zero2", "zero3")),
    **dict.fromkeys(("tensorflow", "tf"), ("tf-mirrored", "tf-parameter-server")),
    **dict.fromkeys(("data-parallel", "dataparallel"), ("ddp", "dp")),
    **dict.fromkeys(("tensor", "tensor-parallel", "megatron"), ("tp", "fsdp+tp")),
    **dict.fromkeys(("pipeline", "pipeline-parallel", "gpipe"), ("pp",)),
    **dict.fromkeys(("model-parallel",), ("tp", "pp")),
}
"""What people call one strategy or several."""


def name(value: object) -> str | None:
    """The name of a profile."""
    if isinstance(value, str) and _NAME.match(value):
        return None
    return "must be 1 to 60 letters, digits, dots, dashes or underscores, and start with a letter or digit"


def variable(value: str) -> str | None:
    """The name of a variable that a profile may set for the ranks."""
    if not VARIABLE.match(value):
        return "is no name for a variable: letters, digits and _, not a digit first"
    if _OURS.match(value):
        return "is set by the launcher for each rank and cannot be chosen"
    return None


def string(value: object) -> str | None:
    """Any text that a process can be given."""
    return Key("", str).problem(value)


def filled_string(value: object) -> str | None:
    """The same, but not an empty one."""
    return "must not be empty" if value == "" else string(value)


def module(value: object) -> str | None:
    """What `python -m` takes."""
    if isinstance(value, str) and _MODULE.match(value):
        return None
    return 'must be the name of a module as after "python -m", for example "package.train"'


def task(value: object) -> str | None:
    """A task of the trainer, or the user's own."""
    if isinstance(value, str) and (value in TASKS or (value.endswith(".py") and "\0" not in value)):
        return None
    hint = did_you_mean(value, TASKS) if isinstance(value, str) else ""
    shipped = either(map(json_word, TASKS))
    return f'must be {shipped}, or the path on the host of your own job file, "....py"{hint}'


def strategy(value: object) -> str | None:
    """The name of a strategy; for one that is none, the nearest."""
    if isinstance(value, str) and value not in STRATEGIES:
        word = value.lower().replace("_", "-")
        near = _FAMILIES.get(word) or difflib.get_close_matches(word, STRATEGIES, n=3, cutoff=0.6)
        # In the order of the list: of names that are equally near none is the first.
        names = [json_word(name) for name in STRATEGIES if name in near]
        if names:
            return f"is no strategy; did you mean {either(names)}? `encamp strategies` explains each"
        return f"is no strategy; there are {', '.join(STRATEGIES)}: `encamp strategies` explains each"
    return Key("", str, choices=STRATEGIES).problem(value)


def arguments(value: object) -> str | None:
    """The arguments of a program."""
    return _list(value, '["--epochs", "3"]')


def packages(value: object) -> str | None:
    """What pip can install."""
    what = _list(value, '["wandb", "einops>=0.8"]')
    if what is not None or not isinstance(value, list):
        return what
    if not value:
        return 'must name at least one package: ["wandb"]'
    for number, entry in enumerate(value, 1):
        if not entry.strip() or any(ord(char) < 32 for char in entry):
            return f'entry {number} must be one package as pip takes it, for example "einops>=0.8"'
        if entry.lstrip().startswith("-"):
            return f"entry {number} is an option, not a package; options of pip go into env_setup.pip_args"
    return None


def pip_arguments(value: object) -> str | None:
    """Options of `pip install`."""
    example = '["--extra-index-url", "https://..."]'
    what = _list(value, example)
    if what is None and isinstance(value, list) and value and not value[0].startswith("-"):
        return f"must begin with an option of pip: {example}; packages go into env_setup.packages"
    return what


def secret_source(value: object) -> str | None:
    """Where the value of a secret is found on the launching machine."""
    kind, _, place = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "env" and VARIABLE.match(place):
        return None
    if kind == "file" and place.strip() and not any(ord(char) < 32 for char in place):
        return None
    return 'must say where the value is found, not the value itself: "env:VARIABLE" or "file:PATH"'


def interface(value: object) -> str | None:
    """The name of a network interface, or none."""
    if value == "" or (isinstance(value, str) and _INTERFACE.match(value)):
        return None
    return 'must be the name of a network interface, such as "eth0": at most 15 characters'


def nproc(value: object) -> str | None:
    """The number of ranks on a host."""
    if value == "auto" or Key("", int, 1, 4096).problem(value) is None:
        return None
    return 'must be "auto" or a whole number from 1 to 4096'


def _list(value: object, example: str) -> str | None:
    if not isinstance(value, list):
        return f"must be a list of strings: {example}"
    for index, entry in enumerate(value):
        problem = string(entry)
        if problem:
            return f"entry {index + 1} {problem}"
    return None
