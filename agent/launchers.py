"""How ranks are started: for each strategy a launcher, and the packages that it needs."""

from __future__ import annotations

import math
import os
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from . import nodes, ports, probe, wire
from .errors import RunError

MIN_SHUTDOWN_SECONDS = 30
"""What torchrun gives its ranks by default before it kills them."""

FLIGHT_RECORDER_ENTRIES = 2000


class Plan(NamedTuple):
    """What a launcher's function gets to see."""

    spec: wire.LaunchSpec
    interpreter: probe.Interpreter
    attempt: int
    attempt_dir: str
    nproc: int
    port: int
    program: Tuple[str, ...]
    """The shim and what it becomes: the command line of a rank without its interpreter."""
    placement: Optional[wire.Placement] = None
    """Where the run's other hosts are; None when there are none."""
    devices: str = ""
    """What CUDA_VISIBLE_DEVICES is, or would be if it named all GPUs of the host; empty without any."""


class Launcher(NamedTuple):
    """A way to start ranks."""

    name: str
    argv: Callable[[Plan], List[str]]
    env: Callable[[Plan], Dict[str, str]]
    one_process: bool = False
    """Whether one rank uses all GPUs of the host."""
    one_host: bool = False
    """Whether it cannot start ranks on several hosts."""
    helpers: int = 0
    """Processes that it starts besides those that `nproc_per_node` counts."""


def torchrun_argv(plan: Plan) -> List[str]:
    """One node of torchrun. It never restarts by itself: we do, with a new port and id each time."""
    if plan.placement is None:
        rendezvous = [
            "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{plan.port}",
            "--rdzv-id", f"{plan.spec.run}-{plan.attempt}",
            "--rdzv-conf", "is_host=1",
            "--local-addr", "127.0.0.1",
        ]  # fmt: skip
    else:
        rendezvous = nodes.torchrun_argv(plan.placement)
    return [
        plan.interpreter.path, "-m", "torch.distributed.run",
        "--nnodes", str(1 if plan.placement is None else len(plan.placement.nodes)),
        "--nproc-per-node", str(plan.nproc),
        "--max-restarts", "0",
        *rendezvous,
        "--log-dir", os.path.join(plan.attempt_dir, "torchrun"),
        *plan.program,
    ]  # fmt: skip


def torchrun_env(plan: Plan) -> Dict[str, str]:
    """Let torchrun wait for its ranks as long as a stop may; keep flight recorder dumps with the attempt."""
    dump = os.path.join(plan.attempt_dir, "flight_recorder_rank")
    entries = str(FLIGHT_RECORDER_ENTRIES)
    env = {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(
            max(MIN_SHUTDOWN_SECONDS, math.ceil(plan.spec.stop_grace_seconds))
        ),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if plan.placement is not None:
        env.update(nodes.interface_env(plan.placement))
    if plan.devices:  # else all jobs of this host answer at the same port, each for another
        env["NCCL_RAS_ADDR"] = f"localhost:{ports.free_port()}"
    if _release(plan.interpreter.torch or "") >= (2, 10):
        env.update(TORCH_FR_BUFFER_SIZE=entries, TORCH_FR_DUMP_TEMP_FILE=dump)
    else:  # newer ones warn that these names are deprecated
        env.update(TORCH_NCCL_TRACE_BUFFER_SIZE=entries, TORCH_NCCL_DEBUG_INFO_TEMP_FILE=dump)
    return env


TORCHRUN = Launcher("torchrun", torchrun_argv, torchrun_env)


def processes_argv(plan: Plan) -> List[str]:
    """Our own launcher, see `process_launcher`, in the role that the strategy is."""
    role, placement = plan.spec.strategy, plan.placement
    words = [
        plan.interpreter.path, "-u", os.path.join(plan.attempt_dir, PROCESS_LAUNCHER), role,
        "--nproc", str(plan.nproc),
        "--grace", f"{max(MIN_SHUTDOWN_SECONDS, plan.spec.stop_grace_seconds):g}",
    ]  # fmt: skip
    if placement is not None:
        if ":" in placement.rendezvous_address:
            raise bad("rendezvous_address", placement.rendezvous_address, "a name or an IPv4 address")
        words += [
            "--nodes", str(len(placement.nodes)),
            "--node", str(placement.node_rank),
            "--address", placement.rendezvous_address,
            "--port", str(plan.port),
            "--interface", placement.nodes[placement.node_rank].interface,
        ]  # fmt: skip
    elif role == "horovod":
        words += ["--interface", "lo"]
    elif role == "tf-parameter-server" and plan.devices:
        words += ["--devices", plan.devices]
    return [*words, "--", *plan.program]


def processes_env(plan: Plan) -> Dict[str, str]:
    """Keep the ranks to the interface by which the hosts reach each other."""
    return {} if plan.placement is None else nodes.interface_env(plan.placement)


PROCESS_LAUNCHER = "process_launcher.py"
"""The file that is put into an attempt whose ranks it starts."""

PROCESSES = Launcher("encamp's launcher", processes_argv, processes_env)

LAUNCHERS = {
    **dict.fromkeys(("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "tp", "fsdp+tp", "pp"), TORCHRUN),
    "dp": TORCHRUN._replace(one_process=True),
    "horovod": PROCESSES,
    "tf-mirrored": PROCESSES._replace(one_process=True, one_host=True),
    "tf-parameter-server": PROCESSES._replace(one_host=True, helpers=2),
}
"""Strategy -> how its ranks are started."""


TRAINER_NEEDS = {
    **dict.fromkeys(("zero1", "zero2", "zero3"), ("torch", "deepspeed")),
    "horovod": ("torch", "horovod"),
    **dict.fromkeys(("tf-mirrored", "tf-parameter-server"), ("tensorflow",)),
}
"""Strategy -> the packages that the trainer needs under it; torch where nothing is said."""

LAUNCHER_NEEDS = {"horovod": ("horovod",), **dict.fromkeys(("tf-mirrored", "tf-parameter-server"), ())}
"""Strategy -> the packages without which nothing can be started under it; torch where nothing is said."""


def _release(version: str) -> Tuple[int, ...]:
    """(2, 13) for 2.13.0+cpu."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def bad(field: str, value: object, allowed: str) -> RunError:
    """The refusal of a launch spec for the value of one field."""
    return RunError("bad-spec", f"{field} = {value!r} is not possible", f"allowed: {allowed}")
