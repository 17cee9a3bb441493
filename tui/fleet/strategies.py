"""The strategies as a person chooses among them: what each is for, what it needs, whether hosts have that.

Pure functions over what is known of the hosts; nobody is asked here. A verdict is a forecast: what a host
refuses at the launch, in its own words, counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .check_facts import Interpreter
from .store import HostView, Link

if TYPE_CHECKING:
    from profiles.schema import Profile

YES, WARNING, NO, UNKNOWN = "yes", "warning", "no", "unknown"
"""Whether hosts can run a strategy. `warning`: they can, and it is not what it is for."""

TORCH = ("torch",)
DEEPSPEED = ("torch", "deepspeed")


HOST = "{host}"
"""In a verdict on one host: its name, until it is known of which others the same is to be said."""


@dataclass(frozen=True, slots=True)
class About:
    """One strategy. `when` is one line on when to choose it.

    `packages` are what the built-in trainer needs under it, by their names for importing; `launcher_packages`
    what a script of the user's needs, for which only the launcher and the environment are ours.
    """

    when: str
    packages: tuple[str, ...] = TORCH
    launcher_packages: tuple[str, ...] = TORCH
    ranks: int = 1
    """The fewest ranks with which the trainer takes it."""
    gpus: int = 0
    """The fewest GPUs on a host for which it makes sense."""
    one_process: bool = False
    """One process uses all GPUs of its host, and there is one host."""
    inside_host: bool = False
    """Its ranks exchange too much for what joins hosts."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What not every host has, in words."""
        packages = [name for name in self.packages if name != "torch"]
        found = [" and ".join(packages)] if packages else []
        found += [f"{self.ranks} ranks"] if self.ranks > 1 else []
        found += [f"{self.gpus} GPUs"] if self.gpus else []
        return (*found, "one host") if self.one_process else tuple(found)


STRATEGIES = {
    "ddp": About("the model fits into one GPU: the fastest there"),
    "fsdp": About("it does not fit: model and optimizer in shards"),
    "hsdp": About("as fsdp, with a copy a host: less traffic between", ranks=4),
    "zero1": About("DeepSpeed: optimizer in shards, model whole", DEEPSPEED),
    "zero2": About("DeepSpeed: gradients in shards as well", DEEPSPEED),
    "zero3": About("DeepSpeed: all in shards; can offload to the CPU", DEEPSPEED),
    "tp": About("layers too large for one GPU, on fast links", ranks=2, inside_host=True),
    "pp": About("many layers, slow links: each rank has some", ranks=2),
    "fsdp+tp": About("very large: layers split in a host, shards across", ranks=4),
    "dp": About("one process for all GPUs of a host; ddp is faster", gpus=2, one_process=True),
    "horovod": About(
        "jobs built on Horovod, unmaintained since 2023", ("torch", "horovod"), launcher_packages=("horovod",)
    ),
    "tf-mirrored": About(
        "TensorFlow on all GPUs of one host", ("tensorflow",), launcher_packages=(), one_process=True
    ),
    "tf-parameter-server": About(
        "TensorFlow on many hosts, each at its own pace", ("tensorflow",), launcher_packages=()
    ),
}
"""Name -> what is to be known of it, in the order in which people are shown them."""


@dataclass(frozen=True, slots=True)
class HostHas:
    """What is known of a host: None where nothing is."""

    name: str
    gpus: int | None = None
    cores: int | None = None
    pythons: tuple[Interpreter, ...] | None = None
    asking: bool = False
    """Its Pythons are being asked."""

    @property
    def ranks(self) -> int | None:
        """How many ranks it starts when nobody says how many: the agent's rule."""
        if self.gpus is None or self.cores is None:
            return None
        return self.gpus or max(2, self.cores)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a launch says besides: `ranks` a host (0: auto), the interpreter, a script or a task.

    `added` are the packages that the profile's [env_setup] brings, None without one.
    """

    ranks: int = 0
    python: str = "auto"
    script: bool = False
    added: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the hosts can run a strategy, why not, and what helps."""

    state: str
    why: str = ""
    fix: str = ""

    @property
    def text(self) -> str:
        """Why and what helps, on one line."""
        return f"{self.why}: {self.fix}" if self.fix else self.why


def host_has(view: HostView, pythons: tuple[Interpreter, ...] | None, *, asking: bool = False) -> HostHas:
    """What is known of a host that is, or is not, connected."""
    sample = view.sample
    if sample is None or view.link is not Link.LIVE:
        return HostHas(view.name)
    known = sample.gpu.state in ("ok", "none")
    return HostHas(
        view.name,
        gpus=len(sample.gpu.gpus) if known else None,
        cores=max(1, int(sample.cpu.limit_cores)),
        pythons=pythons,
        asking=asking,
    )


def wanted(profile: Profile | None) -> Wanted:
    """What a profile says besides the strategy; without one, nothing."""
    if profile is None:
        return Wanted()
    setup = profile.env_setup
    return Wanted(
        ranks=profile.run.nproc_per_node,
        python=profile.run.python,
        script=profile.run.task is None,
        added=None if setup is None else setup.packages,
    )


def judge(name: str, hosts: Sequence[HostHas], wanted: Wanted = Wanted()) -> Verdict:
    """Whether these hosts together can run the strategy; the loudest of what there is to say."""
    about = STRATEGIES[name]
    if not hosts:
        return Verdict(UNKNOWN, "no host is marked")
    found = [*_shape(about, hosts, wanted), _packages(about, hosts, wanted)]
    loudness = (NO, UNKNOWN, WARNING, YES)
    return min(found, key=lambda verdict: loudness.index(verdict.state))


def _shape(about: About, hosts: Sequence[HostHas], wanted: Wanted) -> Iterable[Verdict]:
    """What there is to say of the number of hosts, ranks and GPUs."""
    yield Verdict(YES)
    if about.one_process and len(hosts) > 1:
        yield Verdict(NO, "one host only", "choose one, or another strategy")
    if wanted.script:
        return  # what its ranks do with each other is the script's affair
    if about.one_process and wanted.ranks > 1:
        yield Verdict(NO, "one process a host", "leave the number of ranks at auto")
    if about.inside_host and len(hosts) > 1:
        yield Verdict(WARNING, "keep it inside a host", "hosts exchange every layer; fsdp+tp does not")
    for host in hosts if about.gpus else ():
        if host.gpus == 0:
            yield Verdict(WARNING, f"no GPU on {host.name} to divide a batch over", "use ddp")
        elif host.gpus is not None and host.gpus < about.gpus:
            yield Verdict(NO, f"needs two GPUs, {host.name} has {host.gpus}", "use ddp")
    started = [wanted.ranks or host.ranks for host in hosts]
    ranks = sum(each for each in started if each is not None)
    if None not in started and ranks < about.ranks:
        yield Verdict(NO, f"needs {about.ranks} ranks", f"the launch would start {ranks}")


def _packages(about: About, hosts: Sequence[HostHas], wanted: Wanted) -> Verdict:
    """Whether all hosts have the packages: what those lack that have not, each of them named."""
    found: dict[Verdict, list[str]] = {}
    for host in hosts:
        found.setdefault(_packages_of(about, host, wanted), []).append(host.name)
    for state in (NO, UNKNOWN):
        said = [(verdict, names) for verdict, names in found.items() if verdict.state == state]
        if said:
            whys = [verdict.why.replace(HOST, " and ".join(names)) for verdict, names in said]
            fixes = [verdict.fix.replace(HOST, ",".join(names)) for verdict, names in said]
            return Verdict(state, "; ".join(whys), "; ".join(dict.fromkeys(filter(None, fixes))))
    return Verdict(YES)


def _packages_of(about: About, host: HostHas, wanted: Wanted) -> Verdict:
    """Whether an interpreter of the host has all that is needed, or will have when it has been prepared.

    HOST stands for its name.
    """
    needs = about.launcher_packages if wanted.script else about.packages
    added = {_distribution(entry) for entry in wanted.added or ()}
    needs = tuple(name for name in needs if name not in added)
    if host.pythons is None:
        return Verdict(UNKNOWN, f"asking {HOST} …" if host.asking else f"not known of {HOST}")
    usable = [each for each in host.pythons if each.version]
    if wanted.python != "auto":
        named = [each for each in usable if each.path == wanted.python]
        if not named:
            return Verdict(UNKNOWN, f"not known of {wanted.python} on {HOST}")
        usable = named
    if any(has(each, needs) for each in usable):
        return Verdict(YES)
    lacking = [name for name in needs if not any(has(each, [name]) for each in usable)] or list(needs)
    if not lacking:
        return Verdict(NO, f"no usable Python on {HOST}", "install one there")
    what = " and ".join(lacking)
    if wanted.added is not None:
        return Verdict(NO, f"needs {what}", "add it to packages in the profile's [env_setup]")
    if "torch" in lacking:  # environments for the others are built on a Python that has it
        fix = "install torch there, or name a Python that has it"
        others = [f"then encamp env build {name} --on {HOST}" for name in lacking if name != "torch"]
        return Verdict(NO, f"no {what} on {HOST}", "; ".join((fix, *others)))
    return Verdict(NO, f"needs {what}", f"encamp env build {lacking[-1]} --on {HOST}")


def has(python: Interpreter, packages: Collection[str]) -> bool:
    """Whether an interpreter has all of these packages."""
    return all(python.torch is not None if name == "torch" else name in python.packages for name in packages)


def _distribution(entry: str) -> str:
    """`deepspeed` of `deepspeed[all]>=0.15`; tensorflow's variants are tensorflow."""
    name = re.split(r"[^A-Za-z0-9._-]", entry.strip(), maxsplit=1)[0].lower()
    return "tensorflow" if name in ("tensorflow-cpu", "tf-nightly") else name
