"""The sections of a profile: their keys, and how each is read out of its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import values
from .errors import ABSENT
from .keys import LARGEST, TRAIN_KEYS, Key, either, json_word, key_word, strategy_problem, text_problem
from .reader import Reader
from .source import Table

TARGETS = ("script", "module", "task")
"""The keys of [run] that say what runs. Exactly one is present."""

RUN_KEYS = (
    "strategy", *TARGETS, "args", "cwd", "nproc_per_node", "python", "stop_grace_seconds", "stall_seconds",
)  # fmt: skip
CODE_KEYS = ("path", "max_mb")
ENV_SETUP_KEYS = ("packages", "pip_args")
NETWORK_KEYS = ("interface", "rendezvous_host", "rendezvous_port")

DOTTED = (
    *(f"run.{name}" for name in RUN_KEYS),
    *(f"train.{key.name}" for key in TRAIN_KEYS),
    *(f"code.{name}" for name in CODE_KEYS),
    *(f"env_setup.{name}" for name in ENV_SETUP_KEYS),
    *(f"network.{name}" for name in NETWORK_KEYS),
)
"""Every key of a section whose keys are known."""


@dataclass(frozen=True, slots=True)
class RunSection:
    """What starts, and how. `nproc_per_node` 0 is "auto": a rank a GPU, or a core on a host without GPUs.

    After `stall_seconds` without progress a rank is looked at; 0: after what the run's own rhythm allows.
    """

    strategy: str = "ddp"
    script: str | None = None
    module: str | None = None
    task: str | None = None
    args: tuple[str, ...] = ()
    cwd: str = ""
    nproc_per_node: int = 0
    python: str = "auto"
    stop_grace_seconds: float = 30.0
    stall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CodeSection:
    """The project that the hosts are sent: the folder `path`, asked about when it is over `max_mb` (10^6)."""

    path: str = "."
    max_mb: int = 200


@dataclass(frozen=True, slots=True)
class EnvSetupSection:
    """What a virtual environment on the hosts gets besides what their interpreter has."""

    packages: tuple[str, ...]
    pip_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkSection:
    """How the ranks on several hosts find each other. Empty and 0 are chosen at the launch."""

    interface: str = ""
    rendezvous_host: str = ""
    rendezvous_port: int = 0


def run(reader: Reader, table: Table | None) -> RunSection:
    """The section [run]."""
    if table is None:
        return RunSection()
    reader.unknown("run", table, RUN_KEYS)
    present = [key for key in TARGETS if key in table]
    if len(present) != 1:
        found = " and ".join(present) if present else "none"
        reader.fault("run", ABSENT, f"must have exactly one of {either(TARGETS)}; it has {found}")
    args = reader.take(table, "run.args", [], values.arguments)
    if args and "task" in present:
        reader.fault(
            "run.args", args, "only goes with script and module; a task gets its options from [train]"
        )
    nproc = reader.take(table, "run.nproc_per_node", "auto", values.nproc)
    grace, stall = Key("", float, 0, 3600), Key("", float, 0, 86400)
    return RunSection(
        strategy=reader.take(table, "run.strategy", "ddp", values.strategy),
        script=reader.take(table, "run.script", None, values.filled_string),
        module=reader.take(table, "run.module", None, values.module),
        task=reader.take(table, "run.task", None, values.task),
        args=tuple(args),
        cwd=reader.take(table, "run.cwd", "", values.string),
        nproc_per_node=0 if nproc == "auto" else int(nproc),
        python=reader.take(table, "run.python", "auto", values.filled_string),
        stop_grace_seconds=float(reader.take(table, "run.stop_grace_seconds", 30, grace.problem)),
        stall_seconds=float(reader.take(table, "run.stall_seconds", 0, stall.problem)),
    )


def env(reader: Reader, table: Table) -> dict[str, str]:
    """The section [env]."""
    for name, value in table.items():
        key = f"env.{key_word(name)}"
        if problem := values.variable(name):
            reader.fault(key, value, problem)
        elif not isinstance(value, str):
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            example = f", for example {json_word(shown)}" if isinstance(value, int | float) else ""
            reader.fault(key, value, f"must be a string, in quotes{example}")
        elif problem := text_problem(value):
            reader.fault(key, value, problem)
    return {name: value for name, value in table.items() if isinstance(value, str)}


def secrets(reader: Reader, table: Table, env: Mapping[str, str]) -> dict[str, str]:
    """The section [secrets]: where the value of each variable is found. Nothing repeats what is in it."""
    for name, value in table.items():
        key = f"secrets.{key_word(name)}"
        problem = values.variable(name)
        if problem is None and name in env:
            problem = "is in [env] too; a variable is either a secret or not"
        problem = problem or values.secret_source(value)
        if problem:
            reader.fault(key, ABSENT, problem)
    return {name: value for name, value in table.items() if isinstance(value, str)}


def train(reader: Reader, table: Table, strategy: str) -> dict[str, int | float | str]:
    """The section [train] of a run under `strategy`."""
    known = {key.name: key for key in TRAIN_KEYS}
    reader.unknown("train", table, known)
    values = {
        name: reader.take(table, f"train.{name}", "", known[name].problem) for name in table if name in known
    }
    for name, value in values.items():
        problem = strategy_problem(name, value, strategy) if value == table[name] else None
        if problem:
            reader.fault(f"train.{name}", value, problem)
    return values


def code(reader: Reader, table: Table) -> CodeSection:
    """The section [code]."""
    reader.unknown("code", table, CODE_KEYS)
    return CodeSection(
        path=reader.take(table, "code.path", ".", values.filled_string),
        max_mb=reader.take(table, "code.max_mb", 200, Key("", int, 1, LARGEST).problem),
    )


def env_setup(reader: Reader, table: Table) -> EnvSetupSection:
    """The section [env_setup]."""
    reader.unknown("env_setup", table, ENV_SETUP_KEYS)
    if "packages" not in table:
        reader.fault("env_setup.packages", ABSENT, 'must name at least one package: ["wandb"]')
    return EnvSetupSection(
        packages=tuple(reader.take(table, "env_setup.packages", [], values.packages)),
        pip_args=tuple(reader.take(table, "env_setup.pip_args", [], values.pip_arguments)),
    )


def network(reader: Reader, table: Table) -> NetworkSection:
    """The section [network]."""
    reader.unknown("network", table, NETWORK_KEYS)
    return NetworkSection(
        interface=reader.take(table, "network.interface", "", values.interface),
        rendezvous_host=reader.take(table, "network.rendezvous_host", "", values.string),
        rendezvous_port=reader.take(table, "network.rendezvous_port", 0, Key("", int, 1, 65535).problem),
    )
