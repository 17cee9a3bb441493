"""From a launch spec to what is executed: argv, environment, working directory. One function per launcher.

Nothing is written and nothing is started here, so a dry run and a launch go through the same code.
"""

from __future__ import annotations

import errno
import math
import os
import random
import re
import socket
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import environment, envs, nodes, paths, probe, ranks, wire
from .cgroup import Cgroups
from .errors import RunError

MAX_NPROC = 1024
MAX_GRACE_SECONDS = 3600.0
MAX_STALL_SECONDS = 86400.0
MAX_WORD = 128 * 1024 - 1
"""Bytes of one argument or variable: the kernel's limit."""
MAX_WORDS = 1024 * 1024
"""Bytes of all of them: within the kernel's limit at the usual stack size."""

PORTS = range(15000, 32768)
"""Where a port for the rendezvous is looked for: below those that the kernel gives to connections."""

MIN_SHUTDOWN_SECONDS = 30
"""What torchrun gives its ranks by default before it kills them."""

FLIGHT_RECORDER_ENTRIES = 2000

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Command(NamedTuple):
    """What one attempt executes. `env` is only what is set on top of the daemon's own environment."""

    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    python: str
    nproc_per_node: int
    world_size: int
    port: int
    launcher: str
    """What people call it."""
    torch: str = ""
    cuda: Optional[str] = None
    gpus: Tuple[int, ...] = ()
    """Indices of the host's GPUs that its ranks use."""


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


def resolve(
    home: str,
    spec: wire.LaunchSpec,
    attempt: int,
    placement: Optional[wire.Placement] = None,
    *,
    gpus: Sequence[wire.GpuSample] = (),
    cores: Optional[int] = None,
    planned: bool = False,
) -> Command:
    """Work out what to execute for attempt `attempt` of `spec` on this host.

    `gpus` are those that this host has, `cores` how many cores it may use (None: find out). What is only
    `planned` may lack the environment of [env_setup], which is built before a start. Blocks while an
    interpreter is asked for torch, seconds at the first time. Raises RunError.
    """
    launcher = check(spec)
    cwd, cwd_now = _folders(home, spec)
    _check_target(spec, cwd_now)
    code = [_code_folder(home, reference.sha256, reference.name) for reference in spec.code]
    interpreter = _interpreter(home, spec, cwd_now, planned)
    cores = usable_cores() if cores is None else cores
    nproc = spec.nproc_per_node or (1 if launcher.one_process else len(gpus) or max(2, cores))
    if placement is not None:
        nodes.check(placement, nproc)
        if len(placement.nodes) == 1:
            placement = None
        elif launcher.one_host:
            raise RunError(
                "bad-spec",
                f"strategy {spec.strategy} runs on one host, not on {len(placement.nodes)}",
                "launch it on one of them, or choose ddp or horovod for several",
            )
    port = free_port() if placement is None else placement.rendezvous_port
    attempt_dir = paths.attempt_dir(home, spec.run, attempt)
    kind = "script" if spec.target_kind == "script" else "module"
    target = os.path.expanduser(spec.target) if kind == "script" else spec.target
    shim = os.path.join(attempt_dir, "rank.py")
    program = (shim, kind, target, *spec.args)
    visible = {**environment.inherited(), **spec.env}.get("CUDA_VISIBLE_DEVICES")
    devices = ",".join(str(gpu.index) for gpu in gpus) if visible is None else visible
    plan = Plan(spec, interpreter, attempt, attempt_dir, nproc, port, program, placement, devices)
    env = _base_env(home, plan, cores, code)
    env.update(launcher.env(plan))
    env.update({name: value for name, value in spec.env.items() if name != "PYTHONPATH"})
    env.update(_encamp_env(home, plan))
    users = max(nproc, len(gpus)) if launcher.one_process else nproc
    used = {ranks.gpu_index(local_rank, visible, gpus) for local_rank in range(users)}
    return Command(
        argv=tuple(launcher.argv(plan)),
        env=env,
        cwd=cwd,
        python=interpreter.path,
        nproc_per_node=nproc + launcher.helpers,
        world_size=(nproc + launcher.helpers) * (1 if placement is None else len(placement.nodes)),
        port=port,
        launcher=launcher.name,
        torch=interpreter.torch or "",
        cuda=interpreter.cuda,
        gpus=tuple(sorted(index for index in used if index is not None)),
    )


# --- launchers ---------------------------------------------------------------------------------------------


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
        env["NCCL_RAS_ADDR"] = f"localhost:{free_port()}"
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
            raise _bad("rendezvous_address", placement.rendezvous_address, "a name or an IPv4 address")
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


def _interpreter(home: str, spec: wire.LaunchSpec, cwd: str, planned: bool) -> probe.Interpreter:
    """The one that `spec` means. A user's own script may do with less than the trainer. Raises RunError."""
    wants = TRAINER_NEEDS.get(spec.strategy, ("torch",))
    least = LAUNCHER_NEEDS.get(spec.strategy, ("torch",))
    needs: Sequence[str] = wants if spec.target_kind == "task" else least
    what_for = f"strategy {spec.strategy}"
    if spec.env_setup is None:
        return probe.resolve(home, spec.python, cwd, needs, wants, what_for)
    found = envs.resolve(home, spec.python, cwd, spec.env_setup, planned)
    lacking = found.lacks(needs)
    if planned:  # what a package is called is in its file's name and address too
        lacking = [name for name in lacking if not any(name in word for word in spec.env_setup.packages)]
    if lacking:
        raise RunError(
            "no-package",
            f"the environment of [env_setup] has no {' and '.join(lacking)}, which {what_for} needs",
            "add it to packages in the profile's [env_setup] table",
        )
    return found


def _release(version: str) -> Tuple[int, ...]:
    """(2, 13) for 2.13.0+cpu."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- checking ----------------------------------------------------------------------------------------------


def check(spec: wire.LaunchSpec) -> Launcher:
    """Check what can be checked without looking at the host. Raises RunError `bad-spec`."""
    launcher = LAUNCHERS.get(spec.strategy)
    if launcher is None:
        raise _bad("strategy", spec.strategy, f"one of {', '.join(LAUNCHERS)}")
    if not wire.RUN_ID.match(spec.run):
        raise _bad("run", spec.run, "lower-case letters, digits, '.', '_' and '-', at most 80 of them")
    if spec.target_kind not in ("script", "module", "task"):
        raise _bad("target_kind", spec.target_kind, "script, module or task")
    if not spec.target or (spec.target_kind != "script" and spec.target.startswith("-")):
        raise _bad("target", spec.target, "the path of a script or the name of a module")
    if not 0 <= spec.nproc_per_node <= MAX_NPROC:
        raise _bad("nproc_per_node", spec.nproc_per_node, f"1 to {MAX_NPROC}, or 0 for auto")
    if not 0 <= spec.stop_grace_seconds <= MAX_GRACE_SECONDS:
        raise _bad("stop_grace_seconds", spec.stop_grace_seconds, f"0 to {MAX_GRACE_SECONDS:.0f}")
    if not 0 <= spec.stall_seconds <= MAX_STALL_SECONDS:
        raise _bad("stall_seconds", spec.stall_seconds, f"0 to {MAX_STALL_SECONDS:.0f}")
    check_names("env", spec.env)
    check_names("secrets", spec.secret_sources)
    variables = [f"{name}={value}" for name, value in spec.env.items()]
    words = [spec.target, spec.cwd, spec.python, *spec.args, *variables]
    sizes = [len(os.fsencode(word)) for word in words]
    if any("\0" in word for word in words) or max(sizes) > MAX_WORD or sum(sizes) > MAX_WORDS:
        raise RunError("bad-spec", "an argument or variable holds a zero byte or is too long for this system")
    return launcher


def check_names(field: str, names: Iterable[str]) -> None:
    """Check the names of variables. Raises RunError `bad-spec`."""
    for name in names:
        if not name or "=" in name or "\0" in name:
            raise _bad(field, name, "names of variables")
        if name.startswith("ENCAMP_"):
            raise _bad(field, name, "variables whose names do not begin with ENCAMP_")


def _bad(field: str, value: object, allowed: str) -> RunError:
    return RunError("bad-spec", f"{field} = {value!r} is not possible", f"allowed: {allowed}")


def _folders(home: str, spec: wire.LaunchSpec) -> Tuple[str, str]:
    """The working directory, and where its files are now: the copy of a project is made later."""
    cwd = os.path.expanduser(spec.cwd)
    if spec.project is None:
        path = _folder(os.path.normpath(os.path.join(os.path.expanduser("~"), cwd)))
        return path, path
    copy = paths.run_code_dir(home, spec.run)
    stored = copy
    if not os.path.isdir(copy):
        stored = _code_folder(home, spec.project.sha256, spec.project.name)
    path = os.path.normpath(os.path.join(copy, cwd))
    inside = path == copy or path.startswith(copy + "/")
    return path, _folder(stored + path[len(copy) :] if inside else path)


def _folder(path: str) -> str:
    if not os.path.isdir(path):
        raise RunError("no-cwd", f"there is no folder {path} on this host", "see cwd in the profile")
    if not os.access(path, os.X_OK):
        raise RunError("no-cwd", f"the folder {path} cannot be entered", "see cwd in the profile")
    return path


def _check_target(spec: wire.LaunchSpec, cwd: str) -> None:
    if spec.target_kind == "script":
        path = os.path.join(cwd, os.path.expanduser(spec.target))
        if not os.path.exists(path):
            raise RunError(
                "no-script", f"there is no {path} on this host", "copy it there, or see script and cwd"
            )
        if not os.access(path, os.R_OK):
            raise RunError("no-script", f"{path} cannot be read", "see its permissions")


def _code_folder(home: str, sha256: str, name: str) -> str:
    folder = paths.code_dir(home, sha256)
    if not _SHA256.match(sha256) or not os.path.isdir(folder):
        raise RunError("no-code", f"the code {name!r} is not on this host", "it has to be sent there first")
    return folder


# --- the host ----------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """How many cores this host may use: what the scheduler and the control group leave, at least 1."""
    cgroups = Cgroups()
    quota = cgroups.cpu.limit
    cgroups.close()
    cores = len(os.sched_getaffinity(0))
    return max(1, cores if quota is None else min(cores, int(quota)))


def free_port() -> int:
    """A TCP port that nobody listens on, at random, so that attempts that start together do not meet."""
    for port in random.sample(PORTS, 64):
        if _is_free(port):
            return port
    with socket.socket() as any_port:
        any_port.bind(("", 0))
        return int(any_port.getsockname()[1])


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                return False
    return True


def _base_env(home: str, plan: Plan, cores: int, code: List[str]) -> Dict[str, str]:
    inherited = environment.inherited()
    python = plan.interpreter.path
    # An environment of ours has the packages of the interpreter below, but not the commands that they bring.
    first = [os.path.dirname(path) for path in (python, envs.base_of(home, python)) if path]
    search = [entry for entry in inherited.get("PATH", os.defpath).split(":") if entry not in first]
    env = {"PATH": ":".join([*first, *search]), "PYTHONUNBUFFERED": "1"}
    if "OMP_NUM_THREADS" not in inherited:
        env["OMP_NUM_THREADS"] = str(max(1, cores // plan.nproc))
    theirs = plan.spec.env.get("PYTHONPATH", inherited.get("PYTHONPATH", "") if code else "")
    if code or "PYTHONPATH" in plan.spec.env:
        env["PYTHONPATH"] = ":".join([*code, *([theirs] if theirs else [])])
    return env


def _encamp_env(home: str, plan: Plan) -> Dict[str, str]:
    return {
        "ENCAMP_HOME": home,
        "ENCAMP_RUN": plan.spec.run,
        "ENCAMP_ATTEMPT": str(plan.attempt),
        "ENCAMP_RUN_DIR": paths.run_dir(home, plan.spec.run),
        "ENCAMP_ATTEMPT_DIR": plan.attempt_dir,
    }
