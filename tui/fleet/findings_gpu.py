"""Findings about a host's GPUs and its Pythons: whether there is what ranks need, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .. import formatting as fmt
from .findings import Finding, Subject, release

GIB = 1024**3

DRIVER_OF_CUDA = ((13, 580), (12, 525), (11, 450))
"""A major version of CUDA and the first driver that runs it, for drivers that do not say it themselves."""

PATHS = {
    "internal": "one board", "single": "PIX", "multiple": "PXB", "hostbridge": "PHB", "node": "NODE",
    "system": "SYS", "unknown": "of an unknown kind",
}  # fmt: skip
"""The agent's words for the way between two GPUs -> those of `nvidia-smi topo`, farthest last."""

DRIVERS = {
    "hung": "Reboot the host, or rent another.",
    "not-loaded": "Install the driver and reboot the host.",
    "mismatch": "Reboot the host, or restart the container.",
    "blocked": "Restart the container with its GPUs.",
    "no-permission": "Let this user read and write /dev/nvidia*.",
    "starting": "Check again in a minute: the driver has not answered yet.",
}
"""What helps against the states that a driver may be in."""


def look(subject: Subject) -> Iterator[Finding]:
    """All of them, in an order that stays the same."""
    yield from _gpus(subject)
    yield from _in_use(subject)
    yield from _links(subject)
    yield from _python(subject)
    yield from _cuda(subject)


def _gpus(subject: Subject) -> Iterator[Finding]:
    gpu, gpus = subject.facts.gpu, subject.facts.gpu.gpus
    if gpu.state == "none":
        yield subject.ok("gpus", "no NVIDIA GPU: ranks run on the CPU")
        return
    if gpu.state != "ok":
        fix = DRIVERS.get(gpu.state, "Look at nvidia-smi on the host.")
        yield subject.blocker("gpus", gpu.message or f"the driver is {gpu.state}", fix)
        return
    broken = [each for each in gpus if each.state != "ok"]
    for each in broken:
        text = f"GPU {each.index} is {each.state.replace('-', ' ')}: nothing can use it"
        yield subject.blocker("gpus", text, "Reboot the host, or rent another.")
    models = sorted({fmt.short_gpu_name(each.name) for each in gpus if each.name})
    if not broken:
        memory = gpus[0].memory_total_bytes if gpus else None
        size = f" {memory / GIB:.0f} G" if memory and len(models) == 1 else ""
        cuda = f", runs CUDA {gpu.cuda}" if gpu.cuda else ""
        what = " and ".join(models) or "GPU"
        yield subject.ok("gpus", f"{len(gpus)} × {what}{size}, driver {gpu.driver}{cuda}")
    if len(models) > 1:
        text = f"GPUs of different kinds: {', '.join(models)}"
        yield subject.warning("gpus", text, "The slowest sets the pace, the smallest the batch.")
    if gpus and subject.ranks > len(gpus):
        text = f"{subject.ranks} ranks for {fmt.plural(len(gpus), 'GPU')}: NCCL refuses two on one"
        yield subject.warning("gpus", text, "Lower nproc_per_node.")


def _in_use(subject: Subject) -> Iterator[Finding]:
    gpu = subject.facts.gpu
    held: dict[tuple[str, int, str], list[int]] = {}
    for process in gpu.processes:
        who = (process.run, 0, "") if process.run else ("", process.pid, process.name)
        held.setdefault(who, []).append(process.gpu)
    for (run, pid, name), indices in sorted(held.items())[:16]:
        which = _numbers(indices)
        if run and run != subject.wanted.run:
            yield subject.warning("in use", f"{which} held by the run {run}", f"encamp stop {run}")
        elif name:
            yield subject.warning(
                "in use", f"{which} held by {name}, process {pid}", f"On the host: kill {pid}"
            )
        elif not run:
            text = f"{which} held by a process that is not seen from here ({pid})"
            yield subject.warning(
                "in use", text, "Another container has it as well: take other GPUs, or ask there."
            )
    known = {process.gpu for process in gpu.processes}
    full = [
        each.index for each in gpu.gpus if (each.memory_used_bytes or 0) > GIB and each.index not in known
    ]
    if full and gpu.cuda:  # else nobody was asked for processes
        text = f"{_numbers(full)} with memory in use, and no process that is seen"
        yield subject.warning(
            "in use", text, "Another container has it, or a dead process left it: reboot helps."
        )


def _links(subject: Subject) -> Iterator[Finding]:
    links = subject.facts.gpu.links
    if not links:
        return
    joined = [link for link in links if link.nvlinks]
    order = list(PATHS)
    farthest = max((link.path if link.path in PATHS else "unknown" for link in links), key=order.index)
    pcie = f"PCIe {PATHS[farthest]}"
    if len(joined) == len(links):
        fewest, most = min(link.nvlinks for link in links), max(link.nvlinks for link in links)
        yield subject.ok(
            "links", f"NVLink between all GPUs, {fewest if fewest == most else f'{fewest}-{most}'} each"
        )
    elif joined:
        pairs = ", ".join(f"{link.a}-{link.b}" for link in joined[:8])
        yield subject.ok("links", f"NVLink between {pairs}; else {pcie}")
    else:
        way = "" if any(link.p2p for link in links) else ", through the host's memory"
        yield subject.ok("links", f"no NVLink: {pcie}{way}")


def _python(subject: Subject) -> Iterator[Finding]:
    found, python, wanted = subject.facts.interpreters, subject.python, subject.wanted.python
    if python is not None:
        cuda = f" for CUDA {python.cuda}" if python.cuda else ""
        others = sum(each.torch is not None for each in found or ()) - 1
        more = f" ({others} more with torch)" if others > 0 else ""
        name = f"{python.path} {python.version}".rstrip()
        # What starts a run under TensorFlow needs no torch: the agent has chosen it.
        yield subject.ok("python", f"{name}, torch {python.torch}{cuda}{more}" if python.torch else name)
    elif found is None:
        text = "its Pythons did not say in time whether they have torch"
        yield subject.warning("python", text, "Check again: what they say meanwhile is remembered.")
    elif wanted not in ("auto", *(each.path for each in found)):
        text = f"{wanted} is not among the {fmt.plural(len(found), 'Python')} found"
        yield subject.warning("python", text, "See those with: encamp check HOST --json")
    else:
        meant = [each for each in found if wanted in ("auto", each.path)]
        said = ", ".join(f"{each.path} {each.error or each.version}" for each in meant[:4])
        pip = next((each.path for each in meant if not each.error), "python3")
        fix = (
            f"{pip} -m pip install torch; or name a Python that has it, with python in the profile's [run] "
            "or launch with --set run.python=/path/to/python"
        )
        if any("tensorflow" in each.packages for each in meant):
            text = f"no Python imports torch, only TensorFlow's strategies can run here: {said}"
            yield subject.warning("python", text, f"For any other: {fix}")
        else:
            yield subject.blocker("python", f"no Python imports torch: {said or 'none was found'}", fix)


def _cuda(subject: Subject) -> Iterator[Finding]:
    gpu, python = subject.facts.gpu, subject.python
    if python is None or not python.torch or not gpu.gpus:
        return
    if python.cuda is None:
        text = f"torch {python.torch} is built without CUDA: the GPUs would stay idle"
        yield subject.warning("cuda", text, f"{python.path} -m pip install --force-reinstall torch")
        return
    runs = gpu.cuda or _cuda_of(gpu.driver)
    ours, theirs = release(python.cuda), release(runs)
    if not ours or not theirs or ours <= theirs:
        return
    text = (
        f"torch is built for CUDA {python.cuda}, driver {gpu.driver} runs up to {runs.replace('.99', '.x')}"
    )
    fix = f"Install a torch for CUDA {theirs[0]}, or rent a host with a newer driver."
    if ours[0] > theirs[0]:
        yield subject.blocker("cuda", text, fix)
    else:  # within a major version it works, but for what has to be compiled by the driver
        yield subject.warning("cuda", text, fix)


def _cuda_of(driver: str) -> str:
    first = release(driver)
    return next((f"{cuda}.99" for cuda, since in DRIVER_OF_CUDA if first and first[0] >= since), "")


def _numbers(indices: Iterable[int]) -> str:
    numbers = sorted(set(indices))
    return ("GPU " if len(numbers) == 1 else "GPUs ") + ", ".join(map(str, numbers))
