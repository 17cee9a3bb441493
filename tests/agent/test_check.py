"""The facts of a host: from a real agent, with GPUs that are joined, and from machines made of files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_client import AgentHost
from fakes.nvml import GIB, FakeNvml, NoCompiler
from waiting import wait_until

from agent import check, gpu, wire
from agent.check import Checker, file_system, host_facts, provider, uses_gpu
from tui.fleet import check_facts


def test_an_agent_tells_what_there_is(host: AgentHost) -> None:
    reply = host.connect().request("check", timeout=100)
    facts = check_facts.read(reply)
    assert abs(facts.time - time.time()) < 30
    assert facts.interpreters is not None
    assert any(each.torch == "2.13.0+fake" for each in facts.interpreters)
    machine = facts.host
    assert machine is not None
    assert (machine.hostname, machine.kernel) == (os.uname().nodename, os.uname().release)
    assert machine.home.path == host.home
    assert (machine.home.error, machine.home.executable) == ("", True)
    assert machine.home.file_system
    assert machine.cpu.affinity == len(os.sched_getaffinity(0))
    assert 0 < machine.cpu.usable <= machine.cpu.logical_cores
    assert 0 < machine.memory.limit_bytes <= machine.memory.machine_bytes
    assert machine.disk is not None
    assert machine.ulimits["core"][0] >= -1
    assert facts.gpu.state in wire.GPU_STATES
    assert not list(Path(host.home).glob(".check*"))


def test_pythons_are_asked_only_when_that_is_wanted(one_host: AgentHost) -> None:
    viewer = one_host.connect()
    assert viewer.request("check", pythons=False)["interpreters"] is None
    assert not Path(one_host.home, "interpreters.json").exists()


@pytest.fixture
def make_fake(tmp_path: Path) -> Callable[..., FakeNvml]:
    def make(gpus: int, **options: Any) -> FakeNvml:
        try:
            return FakeNvml(tmp_path, gpus, **options)
        except NoCompiler as error:
            pytest.skip(str(error))

    return make


@pytest.fixture
def gpu_host(
    make_fake: Callable[..., FakeNvml], one_host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeNvml, AgentHost]]:
    """A host with four GPUs: 0 and 1, 2 and 3 joined by NVLinks."""
    fake = make_fake(4)
    fake.join(0, 1, 4)
    fake.join(2, 3, 2)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    yield fake, one_host
    fake.release()


def gpus_of(viewer: Any) -> check_facts.Gpus:
    return check_facts.read(viewer.request("check", pythons=False)).gpu


def test_gpus_with_their_links_and_processes(gpu_host: tuple[FakeNvml, AgentHost]) -> None:
    fake, host = gpu_host
    viewer = host.connect()
    host.launch(viewer, "gpt", "gentle", "forever")
    ranks = [
        int(path.read_text().split('"pid":')[1].split(",")[0])
        for path in sorted(host.attempt_dir("gpt").glob("rank*/rank.json"))
    ]
    fake.occupy(0, ranks[0], memory=GIB)
    fake.occupy(3, ranks[1], os.getpid(), 4_194_305)
    found = gpus_of(viewer)
    assert (found.state, found.driver, found.cuda) == ("ok", "570.133.20", "12.8")
    assert [(link.a, link.b, link.nvlinks, link.p2p) for link in found.links] == [
        (0, 1, 4, True),
        (0, 2, 0, False),
        (0, 3, 0, False),
        (1, 2, 0, False),
        (1, 3, 0, False),
        (2, 3, 2, True),
    ]
    assert {link.path for link in found.links} == {"hostbridge"}
    assert [(each.gpu, each.pid, each.run) for each in found.processes] == [
        (0, ranks[0], "gpt"),
        (3, ranks[1], "gpt"),
        (3, os.getpid(), ""),
        (3, 4_194_305, ""),
    ]
    assert found.processes[0].memory_bytes == GIB
    assert found.processes[0].name
    assert found.processes[2].name == "", "a number that may be another process's is not believed"


def test_links_that_lead_to_a_switch_join_all(gpu_host: tuple[FakeNvml, AgentHost]) -> None:
    fake, host = gpu_host
    for one in range(4):
        for other in range(one):
            fake.join(one, other, 6, switch=True)
    assert {(link.nvlinks, link.p2p) for link in gpus_of(host.connect()).links} == {(18, True)}


def test_a_gpu_that_is_lost_is_left_alone(gpu_host: tuple[FakeNvml, AgentHost]) -> None:
    fake, host = gpu_host
    viewer = host.connect()
    fake.set_gpu(1, result="lost")
    wait_until(lambda: gpus_of(viewer).gpus[1].state == "lost", message="the loss is seen")
    assert [(link.a, link.b) for link in gpus_of(viewer).links] == [(0, 2), (0, 3), (2, 3)]


@pytest.mark.slow
def test_a_driver_that_hangs_holds_up_neither_the_check_nor_telemetry(
    gpu_host: tuple[FakeNvml, AgentHost],
) -> None:
    fake, host = gpu_host
    viewer = host.connect()
    assert len(gpus_of(viewer).links) == 6
    fake.hang()
    number = viewer.ask("check", pythons=False)
    seen = {viewer.expect(wire.Sample).time for _ in range(2)}
    assert len(seen) == 2
    found = check_facts.read(viewer.answer(number)).gpu
    assert found.links == ()
    assert found.driver == "570.133.20"


def test_a_driver_that_crashes_in_the_middle_ends_the_wait(gpu_host: tuple[FakeNvml, AgentHost]) -> None:
    fake, host = gpu_host
    viewer = host.connect()
    assert len(gpus_of(viewer).links) == 6
    fake.crash()
    began = time.monotonic()
    assert gpus_of(viewer).links == ()
    assert time.monotonic() - began < gpu.SURVEY_SECONDS


def test_an_old_driver_tells_less(
    make_fake: Callable[..., FakeNvml], one_host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_fake(1, memory_v2=False)
    fake.set_driver(cuda=0)
    fake.occupy(0, 4_194_305)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    found = gpus_of(one_host.connect())
    assert found.cuda is None
    assert [each.pid for each in found.processes] == [4_194_305]


# --- machines ----------------------------------------------------------------------------------------------


def files(root: Path, **content: str) -> str:
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"etc/environment": 'PATH="/bin"\nVAST_CONTAINERLABEL="C.1"\n'}, ("Vast.ai", "VAST_CONTAINERLABEL")),
        ({"proc/1/environ": "A=b\0RUNPOD_POD_ID=x\0"}, ("RunPod", "RUNPOD_POD_ID")),
        ({"root/.vast_containerlabel": "C.1"}, ("Vast.ai", "/root/.vast_containerlabel")),
        ({"sys/class/dmi/id/sys_vendor": "Hetzner\n"}, ("Hetzner", "sys_vendor Hetzner")),
        (
            {"sys/class/dmi/id/product_name": "Google Compute Engine"},
            ("GCP", "product_name Google Compute Engine"),
        ),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, ("AWS", "sys_vendor Amazon EC2")),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation",
                "sys/class/dmi/id/chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
            ("Azure", "chassis_asset_tag 7783-7084-3265-9085-8269-3286-77"),
        ),
        ({"sys/class/dmi/id/sys_vendor": "Supermicro"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_the_provider_is_guessed(tmp_path: Path, content: dict[str, str], expected: tuple[str, str]) -> None:
    root = files(tmp_path, **content)
    guess = provider(root, check._variables(root))
    assert (guess["name"], guess["why"]) == expected


@pytest.mark.parametrize(
    ("content", "names", "expected"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod1"}, {}, "kubernetes"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"proc/1/cgroup": "0::/init.scope"}, {}, ""),
    ],
)
def test_containers(tmp_path: Path, content: dict[str, str], names: dict[str, str], expected: str) -> None:
    assert check.container(files(tmp_path, **content), names) == expected


def test_the_file_system_of_a_folder() -> None:
    mounts = (
        "overlay / overlay rw 0 0\nnas:/x /home nfs4 rw 0 0\n/dev/sdb /home/my\\040data ext4 rw 0 0\nbad\n"
    )
    assert file_system(mounts, "/root/.encamp") == "overlay"
    assert file_system(mounts, "/home/ann") == "nfs4"
    assert file_system(mounts, "/homes") == "overlay"
    assert file_system(mounts, "/home/my data/x") == "ext4"
    assert file_system("", "/x") == ""


def test_a_home_that_cannot_be_written_to(tmp_path: Path) -> None:
    facts = check.home_facts(str(tmp_path / "missing"))
    assert facts["error"] == "No such file or directory"
    assert check.home_facts(str(tmp_path))["error"] == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"proc/sys/kernel/yama/ptrace_scope": "1\n", "proc/self/status": "CapEff:\t0000000000000000\n"},
            (1, False),
        ),
        ({"proc/self/status": "Name: x\nCapEff:\t0000000000080000\n"}, (None, True)),
        ({"proc/self/status": "CapEff:\tbad\n"}, (None, False)),
    ],
)
def test_ptrace(tmp_path: Path, content: dict[str, str], expected: tuple[int | None, bool]) -> None:
    found = check.ptrace(files(tmp_path, **content))
    assert (found["scope"], found["capability"]) == expected


def test_a_process_is_a_gpus_when_it_has_its_device_open(tmp_path: Path) -> None:
    folder = tmp_path / "77" / "fd"
    folder.mkdir(parents=True)
    (folder / "0").symlink_to("/dev/null")
    assert not uses_gpu(77, str(tmp_path))
    (folder / "5").symlink_to("/dev/nvidia0")
    assert uses_gpu(77, str(tmp_path))
    assert not uses_gpu(78, str(tmp_path))


def test_an_image_that_is_being_set_up(tmp_path: Path) -> None:
    (tmp_path / ".provisioning").touch()
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    facts = host_facts(str(tmp_path), str(tmp_path))
    assert facts["provisioning"] == "/.provisioning"
    assert facts["infiniband"] == ["mlx5_0"]


# --- waiting no longer than is bearable --------------------------------------------------------------------


async def test_what_hangs_is_left_out_and_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def dead_disk(home: str) -> dict[str, Any]:
        calls.append(time.monotonic())
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
        return {"answered": True}

    async def no_gpus() -> wire.GpuStatus:
        return wire.GpuStatus("none", "no NVIDIA GPU", 0.0)

    async def nothing() -> dict[str, Any]:
        return {}

    monkeypatch.setattr(check, "host_facts", dead_disk)
    monkeypatch.setattr(check, "HOST_SECONDS", 0.05)
    checker = Checker(str(tmp_path))
    for _ in range(2):
        facts = await checker.facts(no_gpus(), nothing, False)
        assert facts["host"] is None
        assert facts["gpu"]["state"] == "none"
    assert len(calls) == 1, "a dead disk takes one thread, not one for each check"
    release.set()
    monkeypatch.setattr(check, "HOST_SECONDS", 10.0)
    assert (await checker.facts(no_gpus(), nothing, False))["host"] == {"answered": True}
