"""From a launch spec to what is executed: argv, environment, working directory.

Nothing is written and nothing is started here, so a dry run and a launch go through the same code.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import environment, envs, nodes, paths, ports, probe, ranks, wire
from .cgroup import Cgroups
from .errors import RunError
from .launchers import LAUNCHER_NEEDS, LAUNCHERS, TRAINER_NEEDS, Launcher, Plan, bad

MAX_NPROC = 1024
MAX_GRACE_SECONDS = 3600.0
MAX_STALL_SECONDS = 86400.0
MAX_WORD = 128 * 1024 - 1
"""Bytes of one argument or variable: the kernel's limit."""
MAX_WORDS = 1024 * 1024
"""Bytes of all of them: within the kernel's limit at the usual stack size."""

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
    port = ports.free_port() if placement is None else placement.rendezvous_port
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


# --- checking ----------------------------------------------------------------------------------------------


def check(spec: wire.LaunchSpec) -> Launcher:
    """Check what can be checked without looking at the host. Raises RunError `bad-spec`."""
    launcher = LAUNCHERS.get(spec.strategy)
    if launcher is None:
        raise bad("strategy", spec.strategy, f"one of {', '.join(LAUNCHERS)}")
    if not wire.RUN_ID.match(spec.run):
        raise bad("run", spec.run, "lower-case letters, digits, '.', '_' and '-', at most 80 of them")
    if spec.target_kind not in ("script", "module", "task"):
        raise bad("target_kind", spec.target_kind, "script, module or task")
    if not spec.target or (spec.target_kind != "script" and spec.target.startswith("-")):
        raise bad("target", spec.target, "the path of a script or the name of a module")
    if not 0 <= spec.nproc_per_node <= MAX_NPROC:
        raise bad("nproc_per_node", spec.nproc_per_node, f"1 to {MAX_NPROC}, or 0 for auto")
    if not 0 <= spec.stop_grace_seconds <= MAX_GRACE_SECONDS:
        raise bad("stop_grace_seconds", spec.stop_grace_seconds, f"0 to {MAX_GRACE_SECONDS:.0f}")
    if not 0 <= spec.stall_seconds <= MAX_STALL_SECONDS:
        raise bad("stall_seconds", spec.stall_seconds, f"0 to {MAX_STALL_SECONDS:.0f}")
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
            raise bad(field, name, "names of variables")
        if name.startswith("ENCAMP_"):
            raise bad(field, name, "variables whose names do not begin with ENCAMP_")


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
