"""Findings about a host's limits and its set-up: what runs out during training, and what comes in the way."""

from __future__ import annotations

from collections.abc import Iterator

from .. import formatting as fmt
from .check_facts import Machine
from .findings import Finding, Subject

MIB, GIB = 1024**2, 1024**3

CLOCK_SECONDS = 2.0
"""Beyond it, logs and events of several hosts can no longer be put in order by their times."""

SHM_PER_RANK = 32 * MIB
"""NCCL has 7 to 10 MB for each neighbour and channel there, where GPUs do not read each other directly."""

SHM_FOR_WORKERS = 256 * MIB
"""DataLoader workers hand batches over in /dev/shm, two each: with batches of a few MB this is needed."""

DISK_WARNING, DISK_BLOCKER = 10 * GIB, 512 * MIB
"""A checkpoint with the optimizer's state has 16 bytes a parameter: 10 GiB hold one of 600 million. Without
half a GiB not even the logs are safe."""

INODES = 10_000

MEMORY_PER_RANK, MEMORY_PER_CPU_RANK = 2 * GIB, GIB // 2
"""What a rank takes of the host's memory before it has data: torch, and with a GPU its context."""

THREADS_PER_RANK, BARE_THREADS_PER_RANK = 100, 25
"""Processes and threads of a rank: with DataLoader workers and a compiler's pool, and without any of them."""

OPEN_FILES = 4096
"""Each tensor that a worker hands over keeps a file open: the usual 1024 do not last for several workers."""

LOCKED_MEMORY = GIB
"""InfiniBand pins its buffers: NCCL's own are some hundred MB."""

CORES_SHOWN = 1.5
"""How many times more cores than may be used a host must show before that is worth a word."""

DEAD_DISK = "A file system there may hang: try df and ls on the host."

SHM_FIX = "Start the container with --shm-size=8g; else NCCL_SHM_DISABLE=1 in [env] and num_workers=0."


def look(subject: Subject) -> Iterator[Finding]:
    """All of them, in an order that stays the same."""
    host = subject.facts.host
    if host is None:
        yield subject.warning("machine", "its files did not answer in time", DEAD_DISK)
    else:
        rules = (_machine, _cpu, _memory, _shm, _disk, _home, _pids, _ulimits, _ptrace)
        for rule in rules:
            yield from rule(subject, host)
    yield from _clock(subject)


def _machine(subject: Subject, host: Machine) -> Iterator[Finding]:
    kind = f"{host.container} container" if host.container else "no container"
    parts = [host.provider.name, kind, f"Linux {host.kernel}", host.architecture]
    yield subject.ok("machine", ", ".join(filter(None, parts)))
    if host.provisioning:
        text = f"its image is still being set up: {host.provisioning} exists"
        yield subject.warning(
            "machine", text, "Wait until it is gone: Pythons and packages may be half there."
        )


def _cpu(subject: Subject, host: Machine) -> Iterator[Finding]:
    cpu, ranks = host.cpu, subject.ranks
    if cpu.usable * CORES_SHOWN < cpu.affinity:
        each = max(1, int(cpu.usable) // max(1, ranks))
        yield subject.warning(
            "cpu",
            f"{_cores(cpu.usable)} may be used, nproc says {cpu.affinity}",
            f"Set num_workers by hand, not from os.cpu_count(): {fmt.plural(each, 'core')} a rank.",
        )
    elif cpu.usable < ranks:
        text = f"{_cores(cpu.usable)} for {fmt.plural(ranks, 'rank')}: they will wait for each other"
        yield subject.warning("cpu", text, "Start fewer ranks, or take more cores.")
    else:
        yield subject.ok("cpu", f"{cpu.usable:g} of {fmt.plural(cpu.logical_cores, 'core')}")


def _cores(number: float) -> str:
    return f"{number:g} core" + ("" if number == 1 else "s")


def _memory(subject: Subject, host: Machine) -> Iterator[Finding]:
    memory, ranks = host.memory, subject.ranks
    free = memory.limit_bytes - memory.used_bytes
    text = f"{fmt.size(free)} free of {fmt.size(memory.limit_bytes)}"
    if memory.from_cgroup:
        text += f" (the machine has {fmt.size(memory.machine_bytes)})"
    needed = ranks * (MEMORY_PER_RANK if subject.facts.gpu.gpus else MEMORY_PER_CPU_RANK)
    if free >= needed:
        yield subject.ok("memory", text)
    else:
        text += f": {fmt.plural(ranks, 'rank')} take {fmt.size(needed)} before they have data"
        yield subject.warning("memory", text, "Start fewer ranks, or end what else takes memory.")


def _shm(subject: Subject, host: Machine) -> Iterator[Finding]:
    if host.shm is None:
        yield subject.warning("shm", "there is no /dev/shm", SHM_FIX)
        return
    total, free = host.shm.total_bytes, max(0, host.shm.total_bytes - host.shm.used_bytes)
    links, gpus = subject.facts.gpu.links, subject.facts.gpu.gpus
    directly = bool(links) and all(link.p2p for link in links)
    exchanged = len(gpus) > 1 and subject.ranks > 1 and not directly
    needed = SHM_FOR_WORKERS + (subject.ranks * SHM_PER_RANK if exchanged else 0)
    text = f"{fmt.size(free)} free of {fmt.size(total)} in /dev/shm"
    if free >= needed:
        yield subject.ok("shm", text)
    elif total >= needed:
        yield subject.warning("shm", text, "Dead runs leave files: ls -la /dev/shm, and remove what is old.")
    elif exchanged:
        text += f": {subject.ranks} ranks exchange data through it"
        yield subject.warning("shm", text, SHM_FIX)
    else:
        text += ": little for DataLoader workers"
        yield subject.warning("shm", text, "Start the container with --shm-size=8g, or set num_workers=0.")


def _disk(subject: Subject, host: Machine) -> Iterator[Finding]:
    home, disk = host.home, host.disk
    if disk is not None:
        free = disk.total_bytes - disk.used_bytes
        text = f"{fmt.size(free)} free of {fmt.size(disk.total_bytes)} for {home.path}"
        fix = f"Remove old runs: rm -r {home.path}/runs/RUN; or set home on a larger disk in hosts.toml."
        if free < DISK_BLOCKER:
            yield subject.blocker("disk", text, fix)
        elif free < DISK_WARNING:
            yield subject.warning("disk", text, fix)
        else:
            yield subject.ok("disk", text)
    if home.free_inodes is not None and home.free_inodes < INODES:
        text = f"room for {fmt.plural(home.free_inodes, 'more file')} there"
        yield subject.warning("disk", text, "Remove folders with many small files, such as caches.")


def _home(subject: Subject, host: Machine) -> Iterator[Finding]:
    home = host.home
    if home.error:
        text = f"{home.path} cannot be written to: {home.error}"
        yield subject.blocker("home", text, "Free it, or set home in hosts.toml to another folder.")
    elif not home.executable:
        text = f"{home.path} is mounted noexec: what [env_setup] builds there cannot run"
        yield subject.warning("home", text, "Set home in hosts.toml to a folder on another file system.")
    elif home.network:
        text = f"{home.path} is on {home.file_system}: slow, and no two hosts may use the same folder"
        yield subject.warning("home", text, "Set home in hosts.toml to a folder on the host's own disk.")
    else:
        yield subject.ok("home", f"{home.path} on {home.file_system or 'an unknown file system'}")


def _pids(subject: Subject, host: Machine) -> Iterator[Finding]:
    of_user = host.ulimits.get("nproc", ())[:1] if host.uid else ()
    limits = [*(limit for limit in of_user if limit >= 0), *([host.pids.limit] if host.pids else [])]
    if not limits:
        yield subject.ok("pids", "no limit on processes and threads")
        return
    left = max(0, min(limits) - (host.pids.used if host.pids else 0))
    text = f"{fmt.count(left)} of {fmt.count(min(limits))} processes and threads left"
    fix = "Lower num_workers and OMP_NUM_THREADS, set TORCHINDUCTOR_COMPILE_THREADS=1; or rent another host."
    ranks = subject.ranks
    if left < ranks * BARE_THREADS_PER_RANK:
        text += f": {fmt.plural(ranks, 'rank')} take {BARE_THREADS_PER_RANK} each at least"
        yield subject.blocker("pids", text, fix)
    elif left < ranks * THREADS_PER_RANK:
        text += f": {fmt.plural(ranks, 'rank')} may take {THREADS_PER_RANK} each"
        yield subject.warning("pids", text, fix)
    else:
        yield subject.ok("pids", text)


def _ulimits(subject: Subject, host: Machine) -> Iterator[Finding]:
    found = []
    files, locked, core = (_soft(host, name) for name in ("nofile", "memlock", "core"))
    if 0 <= files < OPEN_FILES:
        fix = "Raise it in /etc/security/limits.conf, or start the container with --ulimit nofile=65536."
        found.append(subject.warning("ulimits", f"at most {files} open files (ulimit -n)", fix))
    if host.infiniband and 0 <= locked < LOCKED_MEMORY:
        text = f"at most {fmt.size(locked)} of locked memory (ulimit -l): little for InfiniBand"
        fix = "Start the container with --ulimit memlock=-1, or set NCCL_IB_DISABLE=1."
        found.append(subject.warning("ulimits", text, fix))
    if (core < 0 or core > GIB) and not host.core_pattern.startswith("|"):
        text = "a rank that crashes writes all its memory to the disk (ulimit -c)"
        found.append(
            subject.warning("ulimits", text, "Put ulimit -c 0 into ~/.profile, or into limits.conf.")
        )
    yield from found or [
        subject.ok("ulimits", f"{'any number of' if files < 0 else fmt.count(files)} open files")
    ]


def _soft(host: Machine, name: str) -> int:
    return next(iter(host.ulimits.get(name, ())), 0 if name == "core" else -1)


def _ptrace(subject: Subject, host: Machine) -> Iterator[Finding]:
    ptrace = host.ptrace
    if ptrace.capability or ptrace.scope == 0:
        yield subject.ok("ptrace", "py-spy and debuggers may look into ranks")
    else:
        why = "no capability" if ptrace.scope is None else f"Yama scope {ptrace.scope}"
        yield subject.ok("ptrace", f"neither py-spy nor a debugger may look into ranks ({why})")


def _clock(subject: Subject) -> Iterator[Finding]:
    clock = subject.clock
    if clock is None:
        return
    if abs(clock.offset) - clock.round_trip / 2 > CLOCK_SECONDS:
        text = f"{fmt.span(abs(clock.offset))} {'ahead of' if clock.offset > 0 else 'behind'} ours"
        fix = "timedatectl set-ntp true; in a container only the provider can set it."
        yield subject.warning("clock", text, fix)
    else:
        trip = f"round trip {clock.round_trip * 1000:.0f} ms"
        yield subject.ok("clock", f"{round(clock.offset * 1000):+d} ms against ours, {trip}")
