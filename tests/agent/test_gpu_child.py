"""The NVML child itself: unmodified pynvml against a fake driver, under every Python of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.nvml import GIB, FakeNvml, NoCompiler
from waiting import wait_until

from agent import bundle, driver, process, wire
from agent.nvml import SLOW_SECONDS, UNWELL_SECONDS

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(bundle.build().data)
    return path


@pytest.fixture
def make_fake(tmp_path: Path) -> Callable[..., FakeNvml]:
    def make(gpus: int = 2, **options: Any) -> FakeNvml:
        try:
            return FakeNvml(tmp_path, gpus, **options)
        except NoCompiler as error:
            pytest.skip(str(error))

    return make


class Child:
    """The child, as the daemon starts it."""

    def __init__(self, python: str, archive: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, "-I", "-S", str(archive), "nvml"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LD_LIBRARY_PATH": "", **environment},
        )

    def line(self) -> wire.GpuStatus:
        assert self.process.stdout is not None
        return wire.from_json(wire.GpuStatus, json.loads(self.process.stdout.readline()))

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=10)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start(archive: Path) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(environment: dict[str, str], python: str = sys.executable) -> Child:
        started.append(Child(python, archive, environment))
        return started[-1]

    yield start
    for child in started:
        child.end()


def test_a_line_holds_all_that_is_known(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], python: str
) -> None:
    fake = make_fake(2, name="NVIDIA H100 80GB HBM3")
    fake.set_gpu(
        1, utilization=100, memory_total=80 * GIB, memory_used=70 * GIB, memory_reserved=GIB, power=699.5,
        power_limit=700, temperature=64,
    )  # fmt: skip
    child = start(fake.environment(), python)
    status = child.line()
    assert (status.state, status.message, status.driver) == ("ok", "", "570.133.20")
    assert abs(status.time - time.time()) < 5
    assert status.gpus[1] == wire.GpuSample(
        index=1, uuid="GPU-00000001-0000-4000-8000-000000000000", name="NVIDIA H100 80GB HBM3", state="ok",
        utilization_percent=100.0, memory_used_bytes=70 * GIB, memory_reserved_bytes=GIB,
        memory_total_bytes=80 * GIB, power_watts=699.5, power_limit_watts=700.0, temperature_celsius=64.0,
    )  # fmt: skip
    assert child.close() == 0
    assert child.process.stderr is not None
    assert child.process.stderr.read() == b""


def test_lines_come_once_a_second(make_fake: Callable[..., FakeNvml], start: Callable[..., Child]) -> None:
    fake = make_fake(1)
    child = start(fake.environment())
    first = child.line()
    fake.set_gpu(0, utilization=42)
    second = child.line()
    assert second.time - first.time == pytest.approx(1.0, abs=0.3)
    assert second.gpus[0].utilization_percent == 42.0


def test_an_old_driver_counts_its_own_share_as_used(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(1, memory_v2=False)
    fake.set_gpu(0, memory_used=10 * GIB, memory_reserved=GIB)
    (sample,) = start(fake.environment()).line().gpus
    assert sample.state == "ok"
    assert (sample.memory_used_bytes, sample.memory_reserved_bytes) == (11 * GIB, None)


@pytest.mark.parametrize(
    ("result", "state", "words"),
    [("lost", "lost", "GPU 1 has fallen off the bus"),
     ("reset-required", "reset-required", "GPU 1 must be reset"),
     ("unknown", "error", "GPU 1 cannot be read"),
     ("no-permission", "no-permission", "GPU 1 cannot be read"),
     ("blocked", "blocked", "GPU 1 cannot be read")],
)  # fmt: skip
def test_one_bad_gpu_leaves_the_others_alone(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], result: str, state: str, words: str
) -> None:
    fake = make_fake(3)
    fake.set_gpu(2, utilization=50)
    child = start(fake.environment())
    assert [sample.state for sample in child.line().gpus] == ["ok", "ok", "ok"]
    fake.set_gpu(1, result=result)
    status = child.line()
    assert [sample.state for sample in status.gpus] == ["ok", state, "ok"]
    assert status.state == "ok"
    assert status.message.startswith(words)
    bad = status.gpus[1]
    assert bad == wire.GpuSample(1, bad.uuid, "NVIDIA GeForce RTX 4090", state), (
        "known by name, without values"
    )
    assert bad.uuid.startswith("GPU-00000001")
    assert status.gpus[2].utilization_percent == 50.0


def test_a_gpu_that_is_lost_from_the_start(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(2)
    fake.set_gpu(0, result="lost")
    status = start(fake.environment()).line()
    assert status.gpus[0] == wire.GpuSample(0, "", "", "lost")
    assert status.gpus[1].state == "ok"


@pytest.mark.parametrize("feature", ["utilization", "memory", "power", "power_limit", "temperature"])
def test_what_a_gpu_does_not_support_is_not_known(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], feature: str
) -> None:
    fake = make_fake(1)
    fake.set_gpu(0, unsupported=(feature,))
    (sample,) = start(fake.environment()).line().gpus
    values = {
        "utilization": sample.utilization_percent, "memory": sample.memory_total_bytes,
        "power": sample.power_watts, "power_limit": sample.power_limit_watts,
        "temperature": sample.temperature_celsius,
    }  # fmt: skip
    assert sample.state == "ok"
    assert [name for name, value in values.items() if value is None] == [feature]


def test_a_gpu_that_supports_nothing_is_still_there(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(1)
    fake.set_gpu(0, unsupported=("utilization", "memory", "power", "power_limit", "temperature"))
    (sample,) = start(fake.environment()).line().gpus
    assert (sample.state, sample.utilization_percent, sample.temperature_celsius) == ("ok", None, None)


def test_a_part_that_shares_the_machines_memory_has_none_of_its_own(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(1)
    fake.set_gpu(0, memory_total=0, memory_reserved=0)
    (sample,) = start(fake.environment()).line().gpus
    assert (sample.memory_total_bytes, sample.memory_used_bytes, sample.memory_reserved_bytes) == (None,) * 3


@pytest.mark.parametrize(
    ("init", "state", "words"),
    [("not-loaded", "not-loaded", "not loaded"), ("no-permission", "no-permission", "/dev/nvidia"),
     ("blocked", "blocked", "container"), ("mismatch", "mismatch", "different versions"),
     ("lost", "lost", "a GPU has fallen off the bus"),
     ("reset-required", "reset-required", "a GPU must be reset"),
     ("library-not-found", "none", "no NVIDIA GPU"),
     ("unknown", "error", "Unknown Error")],
)  # fmt: skip
def test_a_driver_that_cannot_be_used_says_why_and_the_child_ends(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], init: str, state: str, words: str
) -> None:
    fake = make_fake(1)
    fake.set_driver(init=init)
    child = start(fake.environment())
    status = child.line()
    assert status.state == state
    assert words in status.message
    assert status.gpus == ()
    assert child.process.wait(timeout=10) == 0


def test_a_driver_without_gpus(make_fake: Callable[..., FakeNvml], start: Callable[..., Child]) -> None:
    child = start(make_fake(0).environment())
    status = child.line()
    assert (status.state, status.message) == ("none", "no NVIDIA GPU on this host")
    assert child.process.wait(timeout=10) == 0


def test_a_driver_that_is_unloaded_meanwhile(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(1)
    child = start(fake.environment())
    assert child.line().state == "ok"
    fake.set_gpu(0, result="uninitialized")
    assert child.line().state == "error"
    assert child.process.wait(timeout=10) == 0


def test_a_machine_without_the_library(start: Callable[..., Child], python: str, tmp_path: Path) -> None:
    if isinstance(driver.find(), driver.Found):
        pytest.skip("this machine has NVIDIA's library")
    child = start({"LD_LIBRARY_PATH": str(tmp_path)}, python)
    status = child.line()
    assert (status.state, status.message) == ("none", "no NVIDIA GPU on this host")
    assert child.process.wait(timeout=10) == 0


def test_a_library_that_cannot_be_loaded(start: Callable[..., Child], tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    status = start({"LD_LIBRARY_PATH": str(tmp_path)}).line()
    assert status.state == "error"
    assert status.message.startswith("the NVIDIA library is here but cannot be loaded: ")
    assert "libnvidia-ml.so.1" in status.message


def test_a_library_that_prints_does_not_disturb_the_lines(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(1)
    fake.set_driver(noise=True)
    child = start(fake.environment())
    assert child.line().state == "ok"
    assert child.close() == 0
    assert child.process.stderr is not None
    assert b"careless words" in child.process.stderr.read()


def test_the_child_does_not_outlive_its_parent_even_in_a_call_that_hangs(
    make_fake: Callable[..., FakeNvml], archive: Path
) -> None:
    fake = make_fake(1)
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-S", "-c", code, sys.executable, "-I", "-S", str(archive), "nvml"]
    parent = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **fake.environment()},
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = process.start_time(child)
        assert started is not None
        fake.hang(30)
        calls = fake.calls
        wait_until(lambda: fake.calls > calls, message="the child is inside a call")
        assert process.alive(child, started)
        parent.kill()
    wait_until(lambda: not process.alive(child, started))


@pytest.mark.parametrize("init", ["ok", "not-loaded"])
def test_a_child_to_which_nobody_listens_ends_without_a_word(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], init: str
) -> None:
    fake = make_fake(1)
    fake.set_driver(init=init)
    fake.hang(30)
    child = start(fake.environment())
    wait_until(lambda: fake.calls > 0)
    assert child.process.stdout is not None
    child.process.stdout.close()
    fake.release()
    assert child.process.wait(timeout=10) == 0
    assert child.process.stderr is not None
    assert child.process.stderr.read() == b""


class Clocked:
    """One `Gpu` in a process of its own, read at the monotonic times that the test says."""

    CODE = (
        "import json, sys, pynvml\n"
        "from agent import nvml, xids\n"
        "pynvml.nvmlInit()\n"
        "gpu = nvml.Gpu(pynvml, 0, xids.Xids(pynvml, "
        "))\n"
        "for line in sys.stdin: print(json.dumps(gpu.read(float(line))), flush=True)\n"
    )

    def __init__(self, fake: FakeNvml) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, **fake.environment()},
        )

    def read(self, now: float) -> wire.GpuSample:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{now}\n".encode())
        self.process.stdin.flush()
        return wire.from_json(wire.GpuSample, json.loads(self.process.stdout.readline()))


@pytest.fixture
def clocked(make_fake: Callable[..., FakeNvml]) -> Iterator[tuple[FakeNvml, Clocked]]:
    fake = make_fake(1)
    clocked = Clocked(fake)
    yield fake, clocked
    clocked.process.communicate(timeout=10)


def test_slow_values_are_asked_for_rarely(clocked: tuple[FakeNvml, Clocked]) -> None:
    fake, gpu = clocked
    fake.set_gpu(0, temperature=50, power=100)
    assert gpu.read(100.0).temperature_celsius == 50.0
    fake.set_gpu(0, temperature=60, power=200)
    calls = fake.calls
    sample = gpu.read(101.0)
    assert (sample.temperature_celsius, sample.power_watts) == (50.0, 200.0)
    assert fake.calls - calls == 3, "utilisation, memory, power"
    assert gpu.read(100.0 + SLOW_SECONDS).temperature_celsius == 60.0


def test_a_lost_gpu_is_left_alone_and_comes_back(clocked: tuple[FakeNvml, Clocked]) -> None:
    fake, gpu = clocked
    assert gpu.read(100.0).state == "ok"
    fake.set_gpu(0, result="lost", utilization=80)
    assert gpu.read(101.0).state == "lost"
    fake.set_gpu(0, result="ok")
    calls = fake.calls
    for second in range(1, int(UNWELL_SECONDS)):
        assert gpu.read(101.0 + second).state == "lost"
    assert fake.calls == calls
    sample = gpu.read(101.0 + UNWELL_SECONDS)
    assert (sample.state, sample.utilization_percent) == ("ok", 80.0)


def codes(child: Child, gpu: int) -> list[int]:
    return [xid.code for xid in child.line().gpus[gpu].xids]


def test_xids_are_told_with_the_gpu_and_the_time(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child]
) -> None:
    fake = make_fake(2)
    fake.report(1, 31)  # before anybody listens: NVML forgets those
    child = start(fake.environment())
    assert codes(child, 1) == []
    fake.report(1, 79)
    fake.report(1, 79)
    fake.set_gpu(1, result="lost")
    wait_until(lambda: codes(child, 1) == [79, 79])
    status = child.line()
    assert status.gpus[0].xids == ()
    assert (status.gpus[1].state, [xid.code for xid in status.gpus[1].xids]) == ("lost", [79, 79])
    assert abs(status.gpus[1].xids[0].time - time.time()) < 60


@pytest.mark.parametrize("old", [True, False])
def test_a_driver_without_events_tells_of_no_xid(
    make_fake: Callable[..., FakeNvml], start: Callable[..., Child], old: bool
) -> None:
    fake = make_fake(1, memory_v2=not old)
    if not old:
        fake.set_gpu(0, unsupported=("events",))
    child = start(fake.environment())
    child.line()
    fake.report(0, 79)
    assert codes(child, 0) == codes(child, 0) == []
    assert child.line().state == "ok"
