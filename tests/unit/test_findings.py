"""What is found: every rule on both sides of its threshold, and hosts that do or do not fit together."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.checks import GIB, MIB, PYTHON, answer
from hypothesis import given
from hypothesis import strategies as st

from tui.fleet import check_facts, findings_group, preflight
from tui.fleet.check_facts import Clock
from tui.fleet.compare import Plan
from tui.fleet.errors import HostError, Unreachable
from tui.fleet.findings import BLOCKER, OK, WARNING, Finding, Subject, Wanted, release
from tui.fleet.matrix import HostNetwork, Matrix, Probe


def subject(
    reply: dict[str, Any] | None = None,
    name: str = "a",
    *,
    clock: Clock | None = None,
    wanted: Wanted | None = None,
    plan: Plan | None = None,
    host_id: str = "",
) -> Subject:
    facts = check_facts.read(answer() if reply is None else reply)
    return Subject(name, facts, clock, wanted or Wanted(), plan, host_id or name)


def report(*subjects: Subject, matrix: Matrix | None = None) -> preflight.Report:
    by_name = {each.name: each for each in subjects}
    return preflight.judge(list(by_name), by_name, {}, matrix)


def not_ok(*subjects: Subject, matrix: Matrix | None = None) -> list[tuple[str, str]]:
    return [
        (each.level, each.check) for each in report(*subjects, matrix=matrix).findings if each.level != OK
    ]


def only(found: preflight.Report, check: str) -> Finding:
    """The one finding of that name that is not ok."""
    matching = [each for each in found.findings if each.check == check and each.level != OK]
    assert len(matching) == 1, found.findings
    assert matching[0].fix, "says what to do about it"
    return matching[0]


def plan(nproc: int = 8, torch: str = "2.9.1+cu128", cuda: str | None = "12.8") -> Plan:
    return Plan("r", 1, nproc, nproc, "/venv/main/bin/python", (), {}, "/root", torch, cuda, 29999)


def test_a_good_host_is_good_in_everything() -> None:
    found = report(subject(clock=Clock(0.004, 0.02)))
    assert {each.level for each in found.findings} == {OK}
    assert not any(each.fix for each in found.findings)
    said = {each.check: each.text for each in found.findings}
    assert said["gpus"] == "8 × RTX 4090 24 G, driver 570.133.20, runs CUDA 12.8"
    assert said["links"] == "no NVLink: PCIe PHB, through the host's memory"
    assert said["python"] == "/venv/main/bin/python 3.11.7, torch 2.9.1+cu128 for CUDA 12.8"
    assert said["machine"] == "Vast.ai, docker container, Linux 6.8.0-40-generic, x86_64"
    assert said["memory"] == "171 G free of 180 G (the machine has 1.0 T)"
    assert said["clock"] == "+4 ms against ours, round trip 20 ms"
    assert said["ptrace"] == "neither py-spy nor a debugger may look into ranks (Yama scope 1)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shm": {"total_bytes": 64 * MIB}}, (WARNING, "shm")),
        ({"shm": {"total_bytes": 512 * MIB}}, None),
        ({"shm": {"used_bytes": 64 * GIB - 99 * MIB}}, (WARNING, "shm")),
        ({"shm": None}, (WARNING, "shm")),
        ({"disk": {"used_bytes": 500 * GIB - 400 * MIB}}, (BLOCKER, "disk")),
        ({"disk": {"used_bytes": 495 * GIB}}, (WARNING, "disk")),
        ({"home": {"free_inodes": 12}}, (WARNING, "disk")),
        ({"home": {"free_inodes": None}}, None),
        ({"home": {"error": "Read-only file system"}}, (BLOCKER, "home")),
        ({"home": {"executable": False}}, (WARNING, "home")),
        ({"home": {"file_system": "nfs4", "network": True}}, (WARNING, "home")),
        ({"memory": {"used_bytes": 170 * GIB}}, (WARNING, "memory")),
        ({"cpu": {"affinity": 384, "usable": 46.0}}, (WARNING, "cpu")),
        ({"cpu": {"affinity": 48, "usable": 40.0}}, None),
        ({"cpu": {"affinity": 4, "usable": 4.0}}, (WARNING, "cpu")),
        ({"pids": {"limit": 1024}}, None),
        ({"pids": {"used": 300, "limit": 1024}}, (WARNING, "pids")),
        ({"pids": {"used": 900, "limit": 1024}}, (BLOCKER, "pids")),
        ({"pids": None}, None),
        ({"ulimits": {"nofile": [1024, 65536]}}, (WARNING, "ulimits")),
        ({"ulimits": {"nproc": [512, 512]}}, None),
        ({"uid": 1000, "ulimits": {"nproc": [512, 512]}}, (WARNING, "pids")),
        ({"ulimits": {"memlock": [65536, 65536]}}, None),
        ({"ulimits": {"memlock": [65536, 65536]}, "infiniband": ["mlx5_0"]}, (WARNING, "ulimits")),
        ({"ulimits": {"core": [-1, -1]}}, None),
        ({"ulimits": {"core": [-1, -1]}, "core_pattern": "core"}, (WARNING, "ulimits")),
        ({"provisioning": "/.provisioning"}, (WARNING, "machine")),
    ],
)
def test_limits(changes: dict[str, Any], expected: tuple[str, str] | None) -> None:
    assert not_ok(subject(answer(**changes))) == ([expected] if expected else [])


def test_little_shared_memory_is_judged_by_what_ranks_do_with_it() -> None:
    small = answer(shm={"total_bytes": 64 * MIB})
    finding = only(report(subject(small)), "shm")
    assert finding.text == "64.0 M free of 64.0 M in /dev/shm: 8 ranks exchange data through it"
    assert "--shm-size" in finding.fix
    assert "NCCL_SHM_DISABLE=1" in finding.fix
    assert "DataLoader" in only(report(subject(small, wanted=Wanted(nproc_per_node=1))), "shm").text
    middle = answer(shm={"total_bytes": 300 * MIB})
    assert not_ok(subject(middle)) == [(WARNING, "shm")]
    for link in middle["gpu"]["links"]:
        link.update(nvlinks=12, p2p=True)
    assert not_ok(subject(middle)) == [], "NVLink needs none of it"


def test_a_host_whose_files_hang_is_judged_by_what_is_known() -> None:
    reply = {**answer(), "host": None, "interpreters": None}
    assert not_ok(subject(reply)) == [(WARNING, "python"), (WARNING, "machine")]
    assert subject(reply).ranks == 8


# --- GPUs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state", ["hung", "not-loaded", "mismatch", "blocked", "no-permission", "error", "starting"]
)
def test_a_driver_that_does_not_work_is_in_the_way(state: str) -> None:
    reply = answer()
    reply["gpu"].update(state=state, message="it does not work", gpus=[], links=[])
    assert only(report(subject(reply)), "gpus").level == BLOCKER


def test_a_lost_gpu_and_one_of_another_kind() -> None:
    reply = answer(2)
    reply["gpu"]["gpus"][1].update(state="reset-required", name="NVIDIA A100-SXM4-80GB")
    assert not_ok(subject(reply)) == [(BLOCKER, "gpus"), (WARNING, "gpus")]
    assert report(subject(reply)).blockers[0].text == "GPU 1 is reset required: nothing can use it"


def test_more_ranks_than_gpus() -> None:
    assert not_ok(subject(answer(2), wanted=Wanted(nproc_per_node=4))) == [(WARNING, "gpus")]
    assert not_ok(subject(answer(0), wanted=Wanted(nproc_per_node=4))) == []


def test_who_is_on_the_gpus() -> None:
    reply = answer(4)
    reply["gpu"]["processes"] = [
        {"gpu": 0, "pid": 900, "memory_bytes": GIB, "run": "gpt-1", "name": "python"},
        {"gpu": 1, "pid": 901, "memory_bytes": GIB, "run": "gpt-1", "name": "python"},
        {"gpu": 2, "pid": 77, "memory_bytes": None, "run": "", "name": "jupyter"},
        {"gpu": 2, "pid": 4_100_000, "memory_bytes": GIB, "run": "", "name": ""},
    ]
    reply["gpu"]["gpus"][3]["memory_used_bytes"] = 20 * GIB
    said = [each.text for each in report(subject(reply)).warnings]
    assert said == [
        "GPU 2 held by jupyter, process 77",
        "GPU 2 held by a process that is not seen from here (4100000)",
        "GPUs 0, 1 held by the run gpt-1",
        "GPU 3 with memory in use, and no process that is seen",
    ]
    again = report(subject(reply, wanted=Wanted(run="gpt-1")))
    assert not any("gpt-1" in each.text for each in again.warnings), "a restart is not in its own way"


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        ({(0, 1): 12, (0, 2): 12, (1, 2): 12}, "NVLink between all GPUs, 12 each"),
        ({(0, 1): 4}, "NVLink between 0-1; else PCIe SYS"),
        ({}, "no NVLink: PCIe SYS, through the host's memory"),
    ],
)
def test_how_gpus_are_joined(joined: dict[tuple[int, int], int], expected: str) -> None:
    reply = answer(3)
    for link in reply["gpu"]["links"]:
        link["nvlinks"] = joined.get((link["a"], link["b"]), 0)
    reply["gpu"]["links"][-1]["path"] = "system"
    assert next(each.text for each in report(subject(reply)).findings if each.check == "links") == expected


# --- Pythons ------------------------------------------------------------------------------------------------


def test_no_python_with_torch_is_in_the_way() -> None:
    without = {"path": "/usr/bin/python3", "version": "3.10.12", "torch": None, "cuda": None, "error": ""}
    broken = {**without, "path": "/opt/conda/bin/python", "error": "ImportError: libcudart.so.12"}
    finding = only(report(subject(answer(pythons=[broken, without]))), "python")
    assert finding.level == BLOCKER
    assert "/opt/conda/bin/python ImportError: libcudart.so.12, /usr/bin/python3 3.10.12" in finding.text
    assert finding.fix.startswith("/usr/bin/python3 -m pip install torch")
    assert only(report(subject(answer(pythons=[]))), "python").level == BLOCKER


def test_a_host_for_tensorflow_alone_is_of_use() -> None:
    tensorflow = {**PYTHON, "torch": None, "cuda": None, "packages": {"tensorflow": "2.21.0"}}
    finding = only(report(subject(answer(pythons=[tensorflow]))), "python")
    assert finding.level == WARNING
    assert "only TensorFlow's strategies can run here" in finding.text
    chosen = subject(answer(pythons=[tensorflow]), plan=plan(torch="", cuda=None))
    assert not_ok(chosen) == [], "the agent has chosen it, and nothing of torch is in its way"


def test_the_python_that_is_wanted_counts() -> None:
    other = {**PYTHON, "path": "/opt/conda/bin/python", "torch": None}
    reply = answer(pythons=[dict(PYTHON), other])
    assert not_ok(subject(reply)) == []
    assert not_ok(subject(reply, wanted=Wanted(python=other["path"]))) == [(BLOCKER, "python")]
    assert not_ok(subject(reply, wanted=Wanted(python="/elsewhere/python"))) == [(WARNING, "python")]
    assert not_ok(subject(reply, wanted=Wanted(python=other["path"]), plan=plan())) == [], (
        "a plan knows better"
    )


@pytest.mark.parametrize(
    ("torch_cuda", "driver_cuda", "driver", "expected"),
    [
        ("12.8", "12.8", "570.133.20", None),
        ("12.6", "12.8", "570.133.20", None),
        ("12.8", "12.4", "550.54.15", WARNING),
        ("13.0", "12.8", "570.133.20", BLOCKER),
        ("13.0", None, "570.133.20", BLOCKER),
        ("12.9", None, "550.54.15", None),
        ("12.8", None, "470.82", BLOCKER),
        ("12.8", None, "?", None),
        (None, "12.8", "570.133.20", WARNING),
    ],
)
def test_torch_and_the_driver(
    torch_cuda: str | None, driver_cuda: str | None, driver: str, expected: str | None
) -> None:
    reply = answer(pythons=[{**PYTHON, "cuda": torch_cuda}])
    reply["gpu"].update(cuda=driver_cuda, driver=driver)
    assert not_ok(subject(reply)) == ([(expected, "cuda")] if expected else [])


def test_a_clock_is_wrong_only_beyond_what_the_round_trip_hides() -> None:
    assert not_ok(subject(clock=Clock(3600.2, 0.2))) == [(WARNING, "clock")]
    assert only(report(subject(clock=Clock(-3600, 0.2))), "clock").text == "60 min behind ours"
    assert not_ok(subject(clock=Clock(2.4, 1.0))) == []


# --- several hosts ------------------------------------------------------------------------------------------


def test_hosts_that_are_alike() -> None:
    assert not_ok(subject(), subject(name="b")) == []
    text = next(each.text for each in report(subject(), subject(name="b")).findings if each.check == "ranks")
    assert text == "2 hosts with 8 ranks each"


def test_hosts_that_do_not_fit_together() -> None:
    few = answer(4, pythons=[{**PYTHON, "torch": "2.8.0+cu128"}])
    found = report(subject(), subject(few, "b"))
    assert [(each.check, each.host) for each in found.blockers] == [("ranks", ""), ("torch", "")]
    assert found.blockers[0].text == "not equally many ranks: a 8, b 4"
    assert "nproc_per_node = 4" in found.blockers[0].fix
    assert found.blockers[1].text == "different releases of torch: a 2.9.1+cu128, b 2.8.0+cu128"
    four = Wanted(nproc_per_node=4)
    assert [each.check for each in report(subject(wanted=four), subject(few, "b", wanted=four)).blockers] == [
        "torch"
    ]
    patch = answer(pythons=[{**PYTHON, "torch": "2.9.0+cu128"}])
    assert not_ok(subject(), subject(patch, "b")) == [], "a patch of torch may differ"
    assert not_ok(subject(plan=plan(2)), subject(name="b", plan=plan(2, "2.8.1"))) == [(BLOCKER, "torch")]


def test_hosts_that_differ_in_what_is_only_a_nuisance() -> None:
    other = answer(pythons=[{**PYTHON, "cuda": "11.8"}])
    other["gpu"]["driver"] = "550.54.15"
    for gpu in other["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA GeForce RTX 3090"
    assert not_ok(subject(), subject(other, "b")) == [
        (WARNING, "torch"),
        (WARNING, "gpus"),
        (WARNING, "driver"),
    ]


def test_one_machine_by_two_names() -> None:
    assert not_ok(subject(host_id="x"), subject(name="b", host_id="x")) == [(BLOCKER, "hosts")]


def network(*probes: Probe, names: str = "ab") -> Matrix:
    hosts = tuple(HostNetwork(name, name, "", (), (32768, 60999)) for name in names)
    return Matrix(hosts, probes)


def probe(
    pair: str, *, ok: bool = True, rtt: float | None = 0.2, mbit: float | None = 9400, at: str = ""
) -> Probe:
    source, target = pair
    address = at or f"10.0.0.{ord(target)}"
    error = "" if ok else "no route to host"
    return Probe(source, target, "eth0", address, 4000, ok, error, rtt if ok else None, mbit if ok else None)


def test_hosts_that_reach_each_other() -> None:
    two = (subject(), subject(name="b"))
    good = network(probe("ab"), probe("ba", rtt=0.4, mbit=940_0))
    found = report(*two, matrix=good)
    assert not found.blockers + found.warnings
    text = next(each.text for each in found.findings if each.check == "network")
    assert text == "every host reaches every other, within 0.4 ms, 9.4 Gbit/s at least, by eth0"
    assert not_ok(*two, matrix=network(probe("ab", mbit=None), probe("ba", mbit=None))) == [], "not measured"


def test_a_pair_that_does_not_reach_each_other_is_named() -> None:
    two = (subject(), subject(name="b"))
    one_way = report(*two, matrix=network(probe("ab", ok=False), probe("ba")))
    assert [each.text for each in one_way.blockers] == ["a does not reach b (10.0.0.98: no route to host)"]
    neither = report(*two, matrix=network(probe("ab", ok=False)))
    assert (
        only(neither, "network").text == "a does not reach b, nor the other way (10.0.0.98: no route to host)"
    )
    assert "VPN" in only(neither, "network").fix
    by_another = network(probe("ab", ok=False), probe("ab", at="192.168.0.2"), probe("ba"))
    assert not_ok(*two, matrix=by_another) == []


def test_hosts_that_are_far_or_slow() -> None:
    two = (subject(), subject(name="b"))
    found = report(*two, matrix=network(probe("ab", rtt=80, mbit=90), probe("ba", rtt=90, mbit=120)))
    assert [each.text for each in found.warnings] == [
        "a sends 0.09 Gbit/s to b, 1 other way as slow",
        "b and a are 90 ms apart",
    ]


def test_the_best_way_is_the_one_that_is_shown() -> None:
    matrix = network(probe("ab", ok=False, at="1"), probe("ab", mbit=100, at="2"), probe("ab", at="3"))
    way = findings_group.best(matrix, "a", "b")
    assert way is not None
    assert way.address == "3"
    assert findings_group.best(matrix, "b", "a") is None
    assert findings_group.way_words(way) == "0.2 ms 9.4 Gbit/s"
    assert findings_group.way_words(None) == "not reached"


# --- the report ---------------------------------------------------------------------------------------------


def test_a_report_has_blockers_first_and_hosts_in_order() -> None:
    bad = answer(disk={"used_bytes": 500 * GIB}, shm={"total_bytes": MIB})
    subjects = {"b": subject(bad, "b"), "a": subject(name="a")}
    gone = Unreachable("c does not answer.", "Is it on?")
    found = preflight.judge(["b", "c", "a"], subjects, {"c": gone}, None)
    order = {BLOCKER: 0, WARNING: 1, OK: 2}
    levels = [order[each.level] for each in found.findings]
    assert levels == sorted(levels)
    assert [(each.host, each.check) for each in found.blockers] == [("b", "disk"), ("c", "connection")]
    assert found.unreachable
    document = found.to_json()
    assert [host["name"] for host in document["hosts"]] == ["b", "c", "a"]
    assert document["hosts"][1] == {
        "name": "c",
        "error": {"message": "c does not answer.", "hint": "Is it on?"},
        "clock": None,
        "facts": None,
    }
    assert (document["blockers"], document["warnings"], document["matrix"]) == (2, 1, None)


def test_the_matrix_is_in_the_report() -> None:
    matrix = network(probe("ab"), probe("ba", ok=False))
    document = report(subject(), subject(name="b"), matrix=matrix).to_json()["matrix"]
    assert [(pair["from"], pair["to"], pair["ok"], pair["mbit"]) for pair in document["pairs"]] == [
        ("a", "b", True, 9400),
        ("b", "a", False, None),
    ]
    assert len(document["probes"]) == 2


def test_a_failed_measurement_is_a_finding() -> None:
    error = HostError("a: it is gone\nb: it is gone", "Try again.")
    found = preflight.judge(["a"], {"a": subject()}, {"": error}, None)
    assert [(each.host, each.text) for each in found.blockers] == [("", "a: it is gone b: it is gone")]
    assert not found.silent


@given(st.text(max_size=20))
def test_any_version_can_be_compared(version: str) -> None:
    assert release(version) == () or len(release(version)) == 2
