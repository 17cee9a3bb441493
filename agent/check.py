"""What a person wants to know of a host before anything is launched on it: facts, no opinions.

The viewer judges them (`tui/fleet/findings.py`). Everything in here blocks on files or child processes, and
some of it may block for ever on a dead file system: `Checker` calls it in threads and waits only so long.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional

from . import host, probe, process, wire
from .cgroup import Cgroups

Json = Dict[str, Any]

HOST_SECONDS = 10.0
PYTHON_SECONDS = 75.0
"""How long a part may take before the answer goes out without it. The Pythons are asked on, and what they
say is remembered: the next check has it."""

MAX_PYTHONS = 32
MAX_TEXT = 4096

CAP_SYS_PTRACE = 19
UNLIMITED = -1

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "fuse.sshfs", "9p")

PROVISIONING = ("/.provisioning",)
"""Files that exist while an image is still setting itself up."""

PROVIDER_VARIABLES = (
    ("VAST_", "Vast.ai"), ("RUNPOD_", "RunPod"), ("LAMBDA_INSTANCE", "Lambda"), ("PAPERSPACE_", "Paperspace"),
    ("COREWEAVE_", "CoreWeave"), ("TENSORDOCK_", "TensorDock"), ("SALAD_", "Salad"), ("MODAL_", "Modal"),
    ("COLAB_", "Colab"), ("KAGGLE_", "Kaggle"), ("DSTACK_", "dstack"), ("SKYPILOT_", "SkyPilot"),
    ("SLURM_", "Slurm"),
)  # fmt: skip
"""Beginnings of variables' names that a platform sets in its containers, or writes to /etc/environment."""

PROVIDER_FILES = (
    ("root/.vast_containerlabel", "Vast.ai"), ("root/.vast_api_key", "Vast.ai"), ("etc/lambda", "Lambda"),
    ("etc/apt/sources.list.d/lambda-repository.list", "Lambda"), ("etc/paperspace", "Paperspace"),
)  # fmt: skip

PROVIDER_HARDWARE = (
    ("Google", "GCP"), ("Amazon", "AWS"), ("7783-7084-3265-9085-8269-3286-77", "Azure"),
    ("Hetzner", "Hetzner"), ("OracleCloud", "Oracle Cloud"), ("DigitalOcean", "DigitalOcean"),
    ("Scaleway", "Scaleway"), ("Vultr", "Vultr"), ("Linode", "Linode"), ("Alibaba", "Alibaba Cloud"),
    ("Lambda", "Lambda"), ("OVH", "OVH"), ("CoreWeave", "CoreWeave"), ("OpenStack", "OpenStack"),
)  # fmt: skip
"""Words in what the firmware says of the machine."""

DMI = ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor", "board_vendor")

CONTAINER_FILES = ((".dockerenv", "docker"), ("run/.containerenv", "podman"), ("run/systemd/container", ""))


class Checker:
    """Gathers the facts of the host of `home`; who asks while that goes on gets the same answer."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._going_on: Dict[str, asyncio.Future[Any]] = {}

    async def facts(
        self, gpus: Awaitable[wire.GpuStatus], survey: Callable[[], Awaitable[Json]], pythons: bool
    ) -> Json:
        """All that is known after at most `PYTHON_SECONDS`; `host`, `interpreters` None when not by then.

        `gpus` gives what the driver says, `survey` what `GpuMonitor.survey` does. Without `pythons` no
        interpreter is asked.
        """
        machine = asyncio.ensure_future(self._part("host", HOST_SECONDS, host_facts, self._home))
        found = asyncio.ensure_future(self.pythons() if pythons else _nothing())
        status = await gpus
        surveyed = await survey()
        owners = self._part("owners", HOST_SECONDS, owned, surveyed.get("processes") or [])
        facts, known, processes = await asyncio.gather(machine, found, owners)
        return {
            "time": time.time(),
            "host": facts,
            "interpreters": known,
            "gpu": {
                **{name: getattr(status, name) for name in ("state", "message", "driver")},
                "gpus": [wire.to_json(gpu) for gpu in status.gpus],
                "cuda": surveyed.get("cuda"),
                "processes": processes or [],
                "links": surveyed.get("links") or [],
            },
        }

    async def pythons(self) -> Optional[List[Json]]:
        """The Pythons of this host; None when they have not said in time what they have."""
        found: Optional[List[Json]] = await self._part("pythons", PYTHON_SECONDS, interpreters, self._home)
        return found

    async def _part(self, name: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns; None after so many seconds, and while an earlier call still hangs."""
        work = self._going_on.get(name)
        if work is None or work.done():
            work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
            self._going_on[name] = work
        await asyncio.wait([work], timeout=seconds)
        return work.result() if work.done() else None


async def _nothing() -> None:
    return None


def interpreters(home: str) -> List[Json]:
    """The Pythons of this host, as `probe` knows them."""
    return [found._asdict() for found in probe.interpreters(home)[:MAX_PYTHONS]]


def host_facts(home: str, root: str = "/") -> Json:
    """The machine and the limits on us. `root` is the folder that stands for `/`."""
    sampler = host.HostSampler(home, root)
    sample = sampler.sample()
    sampler.close()
    names = _variables(root)
    machine = host.parse_meminfo(_bytes(root, "proc/meminfo"))[0]
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "uid": os.geteuid(),
        "container": container(root, names),
        "provider": provider(root, names),
        "provisioning": next((path for path in PROVISIONING if os.path.exists(_at(root, path))), ""),
        "cpu": _cpu(root, sample.cpu),
        "memory": {**wire.to_json(sample.memory), "machine_bytes": machine},
        "shm": None if sample.shm is None else wire.to_json(sample.shm),
        "disk": None if sample.disk is None else wire.to_json(sample.disk),
        "pids": None if sample.pids is None else wire.to_json(sample.pids),
        "home": home_facts(home, root),
        "ulimits": ulimits(),
        "core_pattern": _text(root, "proc/sys/kernel/core_pattern"),
        "ptrace": ptrace(root),
        "infiniband": sorted(_entries(root, "sys/class/infiniband"))[:16],
    }


def owned(processes: List[Json]) -> List[Json]:
    """The same with the `run` each belongs to, and its `name`; both empty where it is not seen from here.

    The driver may count processes as the machine does and not as this container: one is believed to be
    ours only when it has a device of NVIDIA's open, or bears the marks of an attempt.
    """
    return [{**entry, **_owner(entry["pid"])} for entry in processes]


def _owner(pid: int, proc: str = "/proc") -> Json:
    run = b""
    for variable in process.environ(pid):
        if variable.startswith(b"ENCAMP_RUN="):
            run = variable[len(b"ENCAMP_RUN=") :]
    name = ""
    if run or uses_gpu(pid, proc):
        name = _text(proc, f"{pid}/comm")
    return {"run": run.decode("utf-8", "replace")[:80], "name": name[:40]}


def uses_gpu(pid: int, proc: str = "/proc") -> bool:
    """Whether a process has an NVIDIA device open; False for one of another user, which cannot be seen."""
    for name in _entries(proc, f"{pid}/fd"):
        try:
            if os.readlink(os.path.join(proc, str(pid), "fd", name)).startswith("/dev/nvidia"):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def container(root: str, names: Dict[str, str]) -> str:
    """The kind of container that this is; empty on a machine of its own."""
    if "KUBERNETES_SERVICE_HOST" in names:
        return "kubernetes"
    if names.get("container"):
        return names["container"][:40]
    for path, kind in CONTAINER_FILES:
        if os.path.exists(_at(root, path)):
            return kind or _text(root, path)[:40] or "container"
    groups = _text(root, "proc/1/cgroup")
    for word, kind in (
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("lxc", "lxc"),
        ("podman", "podman"),
    ):
        if word in groups:
            return kind
    return ""


def provider(root: str, names: Dict[str, str]) -> Json:
    """Who rents this host out, a guess: `name`, and `why` it is thought so; both empty where nothing says."""
    for begin, name in PROVIDER_VARIABLES:
        found = next((variable for variable in sorted(names) if variable.startswith(begin)), "")
        if found:
            return {"name": name, "why": found}
    for path, name in PROVIDER_FILES:
        if os.path.exists(_at(root, path)):
            return {"name": name, "why": "/" + path}
    for field in DMI:
        said = _text(root, f"sys/class/dmi/id/{field}")
        for word, name in PROVIDER_HARDWARE:
            if word in said:
                return {"name": name, "why": f"{field} {said}"[:80]}
    return {"name": "", "why": ""}


def home_facts(home: str, root: str = "/") -> Json:
    """Whether ENCAMP_HOME can be written to and executed from, and what kind of file system it is on."""
    path = os.path.join(home, f".check-{os.getpid()}")
    error = ""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"x")
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as problem:
        error = problem.strerror or "error"
    kind = file_system(_text(root, "proc/self/mounts", 1 << 20), os.path.realpath(home))
    try:
        status = os.statvfs(home)
        executable, inodes = not status.f_flag & os.ST_NOEXEC, status.f_favail if status.f_files else None
    except OSError:
        executable, inodes = True, None
    return {
        "path": home,
        "error": error,
        "executable": executable,
        "free_inodes": inodes,
        "file_system": kind,
        "network": kind in NETWORK_FILE_SYSTEMS,
    }


def file_system(mounts: str, path: str) -> str:
    """The type of the file system that holds `path`, from the text of /proc/self/mounts; perhaps empty."""
    found, longest = "", 0
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(point) + 1 >= longest:
            found, longest = fields[2], len(point) + 1
    return found[:40]


def ulimits() -> Dict[str, List[int]]:
    """Soft and hard limit of each resource that matters; -1 is unlimited. Sizes are in bytes."""
    wanted = ("nofile", "memlock", "nproc", "core")
    pairs = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in wanted}
    return {
        name: [UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, 2**62) for limit in pair]
        for name, pair in pairs.items()
    }


def ptrace(root: str = "/") -> Json:
    """`scope` as Yama has it, None without Yama; `capability` whether we may trace whom we like."""
    scope = _text(root, "proc/sys/kernel/yama/ptrace_scope")
    effective = ""
    for line in _text(root, "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            effective = line.split()[1]
    try:
        capable = bool(int(effective or "0", 16) >> CAP_SYS_PTRACE & 1)
    except ValueError:
        capable = False
    return {"scope": int(scope) if scope.isdigit() else None, "capability": capable}


def _cpu(root: str, sample: wire.CpuSample) -> Json:
    cgroups = Cgroups(root)
    quota = cgroups.cpu.limit
    cgroups.close()
    return {
        "logical_cores": sample.logical_cores,
        "affinity": len(os.sched_getaffinity(0)),
        "quota": quota,
        "usable": sample.limit_cores,
    }


def _variables(root: str) -> Dict[str, str]:
    """Variables of ours, of the container's first process, and of logins: the names are what matters."""
    lines = [f"{name}={value}" for name, value in os.environ.items()]
    lines += _bytes(root, "proc/1/environ", 1 << 20).decode("utf-8", "replace").split("\0")
    lines += _text(root, "etc/environment", 1 << 16).splitlines()
    found: Dict[str, str] = {}
    for line in lines:
        name, sign, value = line.replace("export ", "", 1).strip().partition("=")
        if sign and name not in found:
            found[name] = value.strip("\"'")
    return found


def _at(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _entries(root: str, path: str) -> List[str]:
    try:
        return os.listdir(_at(root, path))
    except OSError:
        return []


def _bytes(root: str, path: str, size: int = MAX_TEXT) -> bytes:
    try:
        with open(_at(root, path), "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _text(root: str, path: str, size: int = MAX_TEXT) -> str:
    return _bytes(root, path, size).decode("utf-8", "replace").strip()
