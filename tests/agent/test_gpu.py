"""The GPU monitor of the daemon: hangs, crashes and machines without GPUs, with real child processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fakes.nvml import GIB, FakeNvml, NoCompiler
from waiting import eventually, wait_until

from agent import bundle, driver, gpu, process
from agent.gpu import GpuMonitor, Timing

QUICK = Timing(first_line=5.0, next_line=0.3, first_retry=0.1, retry=0.5, kill=0.2)

CHILD = """\
import json, os, select, signal, sys, time
mode = open(sys.argv[1]).read()
with open(sys.argv[1] + ".starts", "a") as starts:
    starts.write(f"{time.monotonic()}\\n")
gpus = [{"index": 0, "uuid": "GPU-0", "name": "RTX", "state": "ok", "utilization_percent": 97.0,
         "memory_total_bytes": 24, "memory_used_bytes": 20, "power_watts": 400.0, "power_limit_watts": 450.0}]
def say(state, message, gpus):
    status = {"state": state, "message": message, "time": time.time(), "driver": "570", "gpus": gpus}
    line = json.dumps(status)
    if mode == "pieces":
        print(line[:40], end="", flush=True)
        time.sleep(0.05)
        line = line[40:]
    print(line, flush=True)
if mode == "absent":
    say("mismatch", "reboot", [])
    sys.exit(0)
if mode == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if mode == "broken":
    sys.exit(3)
if mode == "garbage":
    print("[]\\n{}\\nnot json\\n" + "x" * 3000000, flush=True)
while not select.select([0], [], [], 0.02)[0]:
    if mode == "pieces" or mode in ("ok", "hang") and open(sys.argv[1]).read() == "ok":
        say("ok", "", gpus)
    elif mode == "xid" and open(sys.argv[1]).read() == "xid":
        say("ok", "", [{**gpus[0], "xids": [{"time": 1000.0, "code": 79}]}])
"""
"""Plays the NVML child ten times as fast, by the word in a file: `hang` says nothing until it is `ok`."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    try:
        fake = FakeNvml(tmp_path, 2)
    except NoCompiler as error:
        pytest.skip(str(error))
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def real_child(tmp_path: Path) -> list[str]:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(bundle.build().data)
    return [sys.executable, "-I", "-S", str(archive), "nvml"]


class Player:
    """A child that plays what the test says."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "child.py"
        self.script.write_text(CHILD)
        self.mode = folder / "mode"
        self.command = [sys.executable, "-I", "-S", str(self.script), str(self.mode)]
        self.play("ok")

    def play(self, mode: str) -> None:
        part = self.mode.with_suffix(".part")
        part.write_text(mode)
        part.replace(self.mode)

    @property
    def starts(self) -> list[float]:
        """The monotonic times at which a child began."""
        starts = Path(str(self.mode) + ".starts")
        return [float(line) for line in starts.read_text().splitlines()] if starts.exists() else []


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    monkeypatch.setattr(driver, "find", lambda **_: driver.Found())
    return Player(tmp_path)


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., GpuMonitor]]:
    monkeypatch.setattr(gpu, "TICK_SECONDS", 0.02)
    monitors: list[GpuMonitor] = []

    def watch(command: list[str], timing: Timing = QUICK) -> GpuMonitor:
        monitors.append(GpuMonitor(command, timing))
        monitors[-1].start()
        return monitors[-1]

    yield watch
    for monitor in monitors:
        pid = monitor.pid
        await monitor.close()
        assert pid is None or process.start_time(pid) is None, "the child outlived the monitor"


async def state(monitor: GpuMonitor, wanted: str) -> None:
    await eventually(lambda: monitor.status().state == wanted, message=f"state {wanted}")


async def test_values_arrive_and_follow_the_driver(
    fake: FakeNvml, real_child: list[str], watch: Callable[..., GpuMonitor]
) -> None:
    fake.set_gpu(1, utilization=97, memory_used=20 * GIB, power=412.5, temperature=71)
    before = time.time()
    monitor = watch(real_child, Timing())
    assert monitor.status().state == "starting"
    await state(monitor, "ok")
    status = monitor.status()
    assert before < status.time <= time.time()
    assert (status.message, status.driver) == ("", "570.133.20")
    first, second = status.gpus
    assert (first.index, first.uuid, first.name, first.state) == (
        0, "GPU-00000000-0000-4000-8000-000000000000", "NVIDIA GeForce RTX 4090", "ok",
    )  # fmt: skip
    assert (second.utilization_percent, second.memory_used_bytes, second.memory_total_bytes) == (
        97.0, 20 * GIB, 24 * GIB,
    )  # fmt: skip
    assert (second.memory_reserved_bytes, second.power_watts, second.power_limit_watts) == (
        GIB // 2, 412.5, 450.0,
    )  # fmt: skip
    assert second.temperature_celsius == 71.0
    fake.set_gpu(0, utilization=3)
    await eventually(lambda: monitor.status().gpus[0].utilization_percent == 3.0)


async def test_a_driver_that_hangs_in_its_first_call(
    fake: FakeNvml, real_child: list[str], watch: Callable[..., GpuMonitor]
) -> None:
    fake.hang()
    monitor = watch(real_child, Timing(first_line=0.5, next_line=2.0, first_retry=0.1))
    await state(monitor, "hung")
    assert monitor.status().message.startswith("driver hung for ")
    assert monitor.status().gpus == ()
    fake.release()
    await state(monitor, "ok")
    assert len(monitor.status().gpus) == 2


async def test_a_driver_that_hangs_while_it_is_watched(
    player: Player, watch: Callable[..., GpuMonitor]
) -> None:
    monitor = watch(player.command)
    await state(monitor, "ok")
    child, live = monitor.pid, monitor.status()
    assert live.gpus[0].utilization_percent == 97.0
    player.play("hang")
    await state(monitor, "hung")
    status = monitor.status()
    assert status.message == "driver hung for 0 s"
    assert status.time < time.time() - QUICK.next_line / 2, "the time stays that of the last reading"
    (sample,) = status.gpus
    assert (sample.state, sample.uuid, sample.memory_total_bytes) == ("hung", "GPU-0", 24)
    assert (sample.utilization_percent, sample.memory_used_bytes, sample.power_watts) == (None, None, None)
    await eventually(lambda: monitor.pid != child)
    await eventually(lambda: monitor.status().message == "driver hung for 1 s")
    assert monitor.status().state == "hung", "a new child that says nothing either is no news"
    player.play("ok")
    await state(monitor, "ok")
    assert monitor.status().gpus[0].utilization_percent == 97.0


async def test_a_child_that_is_killed_in_vain_is_the_only_one(
    player: Player, watch: Callable[..., GpuMonitor], freezer: Callable[[int], Path]
) -> None:
    monitor = watch(player.command)
    await state(monitor, "ok")
    child = monitor.pid
    assert child is not None
    group = freezer(child)
    await state(monitor, "hung")
    await eventually(lambda: "not even SIGKILL" in monitor.status().message)
    deadline = time.monotonic() + 4 * QUICK.retry
    await eventually(
        lambda: time.monotonic() > deadline, message="many times in which another might be started"
    )
    assert (monitor.pid, len(player.starts)) == (child, 1)
    (group / "freezer.state").write_text("THAWED")
    await state(monitor, "ok")
    assert len(player.starts) == 2
    assert monitor.pid != child


@pytest.fixture
def freezer() -> Iterator[Callable[[int], Path]]:
    """Puts a process where not even SIGKILL reaches it, as a call that blocks in the kernel does."""
    root = Path("/sys/fs/cgroup/freezer")
    if not os.access(root, os.W_OK) or not (root / "cgroup.procs").exists():
        pytest.skip("a process that survives SIGKILL needs root and the version 1 freezer")
    group = root / f"encamp-test-{os.getpid()}"
    group.mkdir()

    def freeze(pid: int) -> Path:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (group / "freezer.state").read_text() == "FROZEN\n")
        return group

    yield freeze
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "cgroup.procs").read_text().strip())
    group.rmdir()


async def test_a_monitor_closes_although_its_child_cannot_be_killed(
    player: Player,
    watch: Callable[..., GpuMonitor],
    freezer: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "CLOSE_SECONDS", 0.2)
    monitor = watch(player.command)
    await state(monitor, "ok")
    child = monitor.pid
    assert child is not None
    group = freezer(child)
    started = time.monotonic()
    await monitor.close()
    assert time.monotonic() - started < 2
    assert process.start_time(child) is not None
    (group / "freezer.state").write_text("THAWED")
    await eventually(lambda: (found := process.stat(child)) is None or found.dead)
    os.waitpid(child, os.WNOHANG)  # noqa: ASYNC222 (WNOHANG does not wait)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("segfault", "the NVIDIA library crashed its reader (signal 11)"),
        ("broken", "the GPU reader ended with exit code 3"),
    ],
)
async def test_a_child_that_dies_is_an_error_and_is_started_again_more_and_more_rarely(
    player: Player, watch: Callable[..., GpuMonitor], mode: str, message: str
) -> None:
    monitor = watch(player.command)
    await state(monitor, "ok")
    player.play(mode)
    assert monitor.pid is not None
    os.kill(monitor.pid, 9)
    await eventually(lambda: monitor.status().message == message)
    status = monitor.status()
    assert status.state == "error"
    assert [(sample.state, sample.uuid, sample.utilization_percent) for sample in status.gpus] == [
        ("error", "GPU-0", None)
    ]
    await eventually(lambda: len(player.starts) >= 5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(player.starts[1:5])]
    assert gaps[0] >= 2 * QUICK.first_retry
    assert gaps[1] >= 4 * QUICK.first_retry
    monitor._failures = 16  # as if it had gone on for an hour: the wait has an upper end
    player.play("ok")
    await state(monitor, "ok")


async def test_a_crash_inside_the_library_takes_nobody_along(
    fake: FakeNvml, real_child: list[str], watch: Callable[..., GpuMonitor]
) -> None:
    fake.crash()
    monitor = watch(real_child, Timing(first_retry=0.1))
    await eventually(lambda: "signal 11" in monitor.status().message)
    fake.crash(False)
    await state(monitor, "ok")


async def test_an_xid_is_remembered_when_the_child_is_replaced(
    player: Player, watch: Callable[..., GpuMonitor]
) -> None:
    player.play("xid")
    monitor = watch(player.command)
    await state(monitor, "ok")
    player.play("hang")
    await state(monitor, "hung")
    player.play("ok")
    await state(monitor, "ok")
    assert [xid.code for xid in monitor.status().gpus[0].xids] == [79]


async def test_lines_that_are_no_status_are_not_believed(
    player: Player, watch: Callable[..., GpuMonitor]
) -> None:
    player.play("garbage")
    monitor = watch(player.command, Timing(first_line=0.5, first_retry=0.1))
    await state(monitor, "hung")
    player.play("ok")
    await state(monitor, "ok")


async def test_a_line_that_arrives_in_pieces(player: Player, watch: Callable[..., GpuMonitor]) -> None:
    player.play("pieces")
    await state(watch(player.command), "ok")


async def test_a_driver_that_says_why_it_cannot_be_used_is_asked_again_later(
    player: Player, watch: Callable[..., GpuMonitor]
) -> None:
    player.play("absent")
    monitor = watch(player.command, Timing(retry=60.0))
    await state(monitor, "mismatch")
    await eventually(lambda: monitor.pid is None)
    assert monitor.status().message == "reboot"
    monitor._next_start = time.monotonic() + 0.5  # instead of a minute
    player.play("ok")
    assert len(player.starts) == 1
    await state(monitor, "ok")
    assert len(player.starts) == 2


async def test_a_command_that_cannot_be_started(
    player: Player, watch: Callable[..., GpuMonitor], tmp_path: Path
) -> None:
    monitor = watch([str(tmp_path / "missing")])
    assert monitor.status().state == "error"
    assert monitor.status().message == "the GPU reader cannot be started: No such file or directory"


async def test_a_machine_without_gpus_starts_no_process(
    player: Player, watch: Callable[..., GpuMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "find", lambda **_: driver.Missing("none", driver.NO_GPU))
    monitor = watch(player.command)
    status = monitor.status()
    assert (status.state, status.message, status.gpus) == ("none", "no NVIDIA GPU on this host", ())
    assert monitor.pid is None
    await eventually(lambda: monitor.status().time > status.time, message="another look after a while")
    assert player.starts == []
    monkeypatch.setattr(driver, "find", lambda **_: driver.Found())
    await state(monitor, "ok")


def test_the_monitor_works_under_every_python(fake: FakeNvml, real_child: list[str], python: str) -> None:
    code = (
        "import asyncio, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from agent.gpu import GpuMonitor\n"
        "async def main():\n"
        "    monitor = GpuMonitor([sys.executable, '-I', '-S', sys.argv[1], 'nvml'])\n"
        "    monitor.start()\n"
        "    while monitor.status().state == 'starting': await asyncio.sleep(0.01)\n"
        "    print(monitor.status().state, len(monitor.status().gpus), monitor.pid)\n"
        "    await monitor.close()\n"
        "asyncio.run(main())\n"
    )
    command = [python, "-I", "-S", "-W", "error", "-c", code, real_child[-2]]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    found, gpus, child = output.split()
    assert (found, gpus) == ("ok", "2")
    assert process.start_time(int(child)) is None


async def test_a_monitor_that_never_started_can_be_closed() -> None:
    await GpuMonitor(["true"]).close()
