"""What people are told of the strategies, against what agent, trainer and profiles make of them."""

from __future__ import annotations

import pytest

from agent import launchers
from profiles import keys
from tui.fleet import strategies
from tui.fleet.check_facts import Interpreter
from tui.fleet.strategies import NO, UNKNOWN, WARNING, YES, HostHas, Wanted, judge

TORCH = Interpreter("/venv/main/bin/python", "3.11.7", "2.13.0", "13.0", packages={"torch": "2.13.0"})
DEEPSPEED = Interpreter(
    "/ds/bin/python", "3.11.7", "2.13.0", None, packages={"torch": "2.13.0", "deepspeed": "0.19.8"}
)
TENSORFLOW = Interpreter("/tf/bin/python", "3.12.1", None, None, packages={"tensorflow": "2.21.0"})
BARE = Interpreter("/usr/bin/python3", "3.10.1", None, None)
BROKEN = Interpreter("/old/python", "", None, None, error="ended with code 1", packages={"deepspeed": "1"})


def host(name: str = "a", *pythons: Interpreter, gpus: int = 8) -> HostHas:
    return HostHas(name, gpus=gpus, cores=32, pythons=pythons or (BARE, TORCH))


def said(name: str, *hosts: HostHas, **wanted: object) -> tuple[str, str]:
    verdict = judge(name, hosts, Wanted(**wanted))  # type: ignore[arg-type]
    return verdict.state, verdict.text


def test_every_strategy_of_a_profile_is_in_the_table() -> None:
    assert set(strategies.STRATEGIES) == set(keys.STRATEGIES)


def test_packages_are_those_without_which_the_agent_refuses() -> None:
    for name, about in strategies.STRATEGIES.items():
        assert set(about.packages) == set(launchers.TRAINER_NEEDS.get(name, ("torch",))), name
        assert set(about.launcher_packages) == set(launchers.LAUNCHER_NEEDS.get(name, ("torch",))), name
        assert about.one_process == launchers.LAUNCHERS[name].one_process, name


def test_when_to_choose_one_fits_a_line_of_a_small_terminal() -> None:
    for name, about in strategies.STRATEGIES.items():
        assert len(about.when) <= 49, name
        assert about.when == about.when.strip(" .")


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("ddp", [host()], (YES, "")),
        ("zero2", [host("a", BARE, TORCH, DEEPSPEED)], (YES, "")),
        ("zero2", [host()], (NO, "needs deepspeed: encamp env build deepspeed --on a")),
        ("zero2", [host("a", DEEPSPEED), host("b")], (NO, "needs deepspeed: encamp env build")),
        ("zero2", [host("a", TORCH, BROKEN)], (NO, "needs deepspeed: encamp env build deepspeed --on a")),
        ("horovod", [host()], (NO, "needs horovod: encamp env build horovod --on a")),
        ("tf-mirrored", [host()], (NO, "needs tensorflow: encamp env build tensorflow --on a")),
        ("tf-mirrored", [host("a", TENSORFLOW)], (YES, "")),
        ("ddp", [host("a", TENSORFLOW)], (NO, "no torch on a: install torch there")),
        ("zero2", [host("a", BARE)], (NO, "no torch and deepspeed on a: install torch there, or name a "
            "Python that has it; then encamp env build deepspeed --on a")),
        ("zero2", [host("a"), host("b", DEEPSPEED), host("c")], (NO, "needs deepspeed: encamp env build "
            "deepspeed --on a,c")),
        ("zero2", [host("a", BARE), host("b")], (NO, "no torch and deepspeed on a; needs deepspeed: install "
            "torch there, or name a Python that has it; then encamp env build deepspeed --on a; encamp env "
            "build deepspeed --on b")),
        ("hsdp", [host(gpus=2)], (NO, "needs 4 ranks: the launch would start 2")),
        ("hsdp", [host(gpus=2), host("b", gpus=2)], (YES, "")),
        ("fsdp+tp", [host(gpus=3)], (NO, "needs 4 ranks: the launch would start 3")),
        ("dp", [host(gpus=1)], (NO, "needs two GPUs, a has 1: use ddp")),
        ("dp", [host(gpus=0)], (WARNING, "no GPU on a to divide a batch over: use ddp")),
        ("dp", [host(), host("b")], (NO, "one host only: choose one, or another strategy")),
        ("tf-mirrored", [host("a", TENSORFLOW), host("b", TENSORFLOW)], (NO, "one host only")),
        ("tp", [host(), host("b")], (WARNING, "keep it inside a host")),
        ("tp", [host(gpus=1)], (NO, "needs 2 ranks: the launch would start 1")),
        ("ddp", [HostHas("a", asking=True)], (UNKNOWN, "asking a …")),
        ("ddp", [HostHas("a")], (UNKNOWN, "not known of a")),
        ("ddp", [HostHas("a"), host("b"), HostHas("c")], (UNKNOWN, "not known of a and c")),
        ("ddp", [], (UNKNOWN, "no host is marked")),
    ],
)  # fmt: skip
def test_whether_hosts_can_run_one(name: str, hosts: list[HostHas], expected: tuple[str, str]) -> None:
    state, text = said(name, *hosts)
    assert state == expected[0]
    assert text.startswith(expected[1]) if expected[1] else text == ""


def test_what_the_launch_says_besides_counts() -> None:
    assert said("hsdp", host(), ranks=2)[0] == NO
    assert said("hsdp", host(gpus=0), ranks=4)[0] == YES
    assert said("dp", host(), ranks=2) == (NO, "one process a host: leave the number of ranks at auto")
    assert said("zero1", host(), added=("deepspeed[extra]>=0.15",))[0] == YES
    assert said("zero1", host(), added=("wandb",))[1].endswith(
        "add it to packages in the profile's [env_setup]"
    )
    assert said("zero1", host("a", TORCH, DEEPSPEED), python=TORCH.path)[0] == NO
    assert said("zero1", host("a", TORCH, DEEPSPEED), python=DEEPSPEED.path)[0] == YES
    assert said("zero1", host(), python="venv/bin/python")[0] == UNKNOWN


def test_a_script_needs_only_what_starts_it() -> None:
    assert said("zero2", host(), script=True)[0] == YES
    assert said("fsdp+tp", host(gpus=1), script=True)[0] == YES
    assert said("tf-parameter-server", host("a", BARE), script=True)[0] == YES
    assert said("horovod", host(), script=True)[0] == NO
