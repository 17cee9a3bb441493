"""The machine's own numbers: parsers on real samples and on anything, and the sampler on whole machines."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import host, wire
from agent.host import HostSampler, parse_cpu, parse_meminfo, parse_net, space

REPOSITORY = Path(__file__).parent.parent.parent

STAT = b"""\
cpu  2000 100 900 7000 500 0 100 400 50 0
cpu0 1500 50 400 1000 0 0 50 0 50 0
cpu1 300 50 400 3000 250 0 50 200 0 0
cpu10 200 0 100 3000 250 0 0 200 0 0
intr 114930548 113199788 3 0 5 263 0 4
ctxt 1990473
btime 1062191376
"""

MEMINFO = b"""\
MemTotal:       131917224 kB
MemFree:         1206416 kB
MemAvailable:   98304000 kB
Buffers:          204800 kB
"""

NET = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9999999    5000    0    0    0     0          0         0  9999999    5000    0    0    0     0       0          0
  eth0:1296540233 12345    0    0    0     0          0         0   654321    4321    0    0    0     0       0          0
ib0.8001:   700       1    0    0    0     0          0         0      800       1    0    0    0     0       0          0
eth0:1:      10       1    0    0    0     0          0         0       20       1    0    0    0     0       0          0
"""  # noqa: E501


def test_cpu_time_of_all_cores_and_of_some() -> None:
    assert parse_cpu(STAT) == (31.0, 110.0)
    assert parse_cpu(STAT, {1}) == (8.0, 42.5)
    assert parse_cpu(STAT, {0, 10}) == (20.0 + 3.0, 30.0 + 37.5)
    assert parse_cpu(STAT, {7}) is None
    assert parse_cpu(b"") is None
    assert parse_cpu(b"cpu  1 2 3 4\n") is None
    assert parse_cpu(b"cpu  1 2 3 4 5 6 7\n") == (0.19, 0.28), "kernels without stolen time"


def test_memory_total_and_available() -> None:
    assert parse_meminfo(MEMINFO) == (131917224 * 1024, 98304000 * 1024)
    assert parse_meminfo(b"") == (0, 0)
    assert parse_meminfo(b"MemTotal: many kB\n") == (0, 0)


def test_network_counters_by_interface_without_loopback() -> None:
    assert parse_net(NET) == {b"eth0": (1296540233, 654321), b"ib0.8001": (700, 800), b"eth0:1": (10, 20)}


@given(st.binary(max_size=400))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    for text in (data, b"cpu " + data, b"MemTotal:" + data, b"eth0:" + data, b"cpu 1 2 3 4 5 6 7 " + data):
        reading = parse_cpu(text, {0})
        assert reading is None or 0 <= reading[0] <= reading[1]
        assert min(parse_meminfo(text)) >= 0
        assert all(min(counters) >= 0 for counters in parse_net(text).values())


@given(st.lists(st.integers(0, 2**40), min_size=8, max_size=10))
def test_busy_is_a_part_of_the_total(counters: list[int]) -> None:
    reading = parse_cpu(b"cpu  " + b" ".join(b"%d" % counter for counter in counters) + b"\n")
    assert reading is not None
    assert 0 <= reading[0] <= reading[1]
    assert reading[1] == pytest.approx(sum(counters[:8]) / host.TICKS_PER_SECOND)


def test_space_is_counted_as_df_counts_it(tmp_path: Path) -> None:
    found = space(str(tmp_path))
    assert found is not None
    output = subprocess.run(
        ["df", "-B1", "--output=used,avail", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    used, available = map(int, output.splitlines()[1].split())
    assert found.path == str(tmp_path)
    assert found.used_bytes == pytest.approx(used, rel=0.01)
    assert found.total_bytes == pytest.approx(used + available, rel=0.01)
    assert space(str(tmp_path / "missing")) is None
    assert space("/proc") is None, "a file system without a size"


class Machine:
    """A folder that stands for `/`, whose counters the test moves on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/stat", STAT)
        self.write("proc/meminfo", MEMINFO)
        self.write("proc/net/dev", NET)

    def write(self, path: str, data: bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def container(self, **values: str) -> None:
        """Make it a container on version 2 with these files in its group."""
        self.write("proc/self/cgroup", b"0::/\n")
        self.write("proc/self/mountinfo", b"31 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        if not (self.root / "proc/self/ns").exists():
            (self.root / "proc/self/ns").mkdir()
            (self.root / "proc/self/ns/cgroup").symlink_to("cgroup:[4026532717]")
        for name, value in values.items():
            self.write("sys/fs/cgroup/" + name.replace("__", "."), value.encode() + b"\n")


class Clock:
    """Replaces `time` for agent.host: an interval takes exactly as long as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    return clock


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.fixture
def machine(tmp_path: Path, four_cores: None) -> Machine:
    return Machine(tmp_path)


def test_a_whole_machine(machine: Machine, clock: Clock) -> None:
    sampler = HostSampler(str(machine.root), str(machine.root))
    first = sampler.sample()
    assert (first.cpu.logical_cores, first.cpu.limit_cores, first.cpu.percent) == (4, 4.0, None)
    assert first.memory == wire.MemorySample((131917224 - 98304000) * 1024, 131917224 * 1024, False)
    assert first.network == wire.NetworkSample(None, None)
    assert first.pids is None
    assert first.disk is not None
    assert first.disk.path == str(machine.root)

    clock.now += 2.0
    machine.write("proc/stat", b"cpu  2150 100 900 7050 500 0 100 600 50 0\n")
    machine.write(
        "proc/net/dev",
        NET.replace(b"1296540233", b"1296541233").replace(b"654321", b"654821")
        + b"veth: 5000 0 0 0 0 0 0 0 9000\n",
    )
    second = sampler.sample()
    assert second.cpu.percent == pytest.approx(100 * 150 / 400)
    assert second.network == wire.NetworkSample(500.0, 250.0), "a new interface is not traffic"

    clock.now += 1.0
    machine.write("proc/net/dev", NET.replace(b"1296540233", b"5"))
    third = sampler.sample()
    assert third.network == wire.NetworkSample(0.0, 0.0), "a counter that begins anew is not traffic"
    assert third.cpu.percent is None, "no time has passed for the CPUs"
    sampler.close()


def test_a_machine_of_which_we_may_use_one_core(
    machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    sampler = HostSampler(str(machine.root), str(machine.root))
    assert sampler.sample().cpu.limit_cores == 1.0
    machine.write(
        "proc/stat", STAT.replace(b"cpu1 300", b"cpu1 375").replace(b"400 3000 250", b"400 3025 250")
    )
    clock.now += 1.0
    assert sampler.sample().cpu.percent == pytest.approx(75.0)


def test_a_container_is_measured_by_its_own_limits(machine: Machine, clock: Clock) -> None:
    machine.container(
        cpu__max="200000 100000",
        cpu__stat="usage_usec 1000000\nnr_periods 100\nnr_throttled 10",
        memory__max="8589934592",
        memory__current="4294967296",
        memory__stat="inactive_file 1073741824",
        pids__max="1024",
        pids__current="1000",
    )
    sampler = HostSampler(str(machine.root), str(machine.root))
    first = sampler.sample()
    assert (first.cpu.logical_cores, first.cpu.limit_cores) == (4, 2.0)
    assert first.memory == wire.MemorySample(3 * 1024**3, 8 * 1024**3, True)
    assert first.pids == wire.PidsSample(1000, 1024)
    assert first.cpu.throttled_percent is None
    clock.now += 2.0
    machine.container(cpu__stat="usage_usec 4000000\nnr_periods 120\nnr_throttled 15")
    second = sampler.sample()
    assert second.cpu.percent == pytest.approx(75.0)
    assert second.cpu.throttled_percent == pytest.approx(25.0)
    clock.now += 1.0
    assert sampler.sample().cpu.throttled_percent == 0.0
    clock.now += 1.0
    machine.container(cpu__stat="usage_usec 99000000\nnr_periods 121\nnr_throttled 15")
    assert sampler.sample().cpu.percent == 100.0


def test_a_limit_above_the_machines_memory_is_none(machine: Machine, clock: Clock) -> None:
    machine.container(memory__max=str(2**50), memory__current="1", memory__stat="")
    assert HostSampler(str(machine.root), str(machine.root)).sample().memory.from_cgroup is False


def test_limits_that_change_are_seen_after_a_while(machine: Machine, clock: Clock) -> None:
    machine.container(cpu__max="200000 100000", cpu__stat="usage_usec 1")
    sampler = HostSampler(str(machine.root), str(machine.root))
    assert sampler.sample().cpu.limit_cores == 2.0
    machine.container(cpu__max="100000 100000")
    clock.now += 1.0
    assert sampler.sample().cpu.limit_cores == 2.0
    clock.now += host.SLOW_SECONDS
    assert sampler.sample().cpu.limit_cores == 1.0


def test_without_proc_nothing_is_invented(tmp_path: Path, clock: Clock) -> None:
    sampler = HostSampler(str(tmp_path / "missing"), str(tmp_path))
    for _ in range(2):
        sample = sampler.sample()
        clock.now += 1.0
    assert (sample.cpu.percent, sample.disk, sample.pids) == (None, None, None)
    assert sample.memory == wire.MemorySample(0, 0, False)
    assert sample.network == wire.NetworkSample(None, None)


def test_this_machine_under_load(tmp_path: Path) -> None:
    sampler = HostSampler(str(tmp_path))
    sampler.sample()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    percent = sampler.sample().cpu.percent
    assert percent is not None
    assert percent > 100 / (os.cpu_count() or 1) / 2
    sampler.close()


def test_every_python_takes_a_sample_that_can_be_sent(tmp_path: Path, python: str) -> None:
    code = (
        "import sys; from agent import host, wire; s = host.HostSampler(sys.argv[1])\n"
        "s.sample(); h = s.sample()\n"
        "gpu, cost = wire.GpuStatus('none', '', 0.0), wire.AgentCost(None, 0)\n"
        "sample = wire.Sample(0.0, 0.0, h.cpu, h.memory, h.shm, h.disk, h.network, gpu, cost, h.pids)\n"
        "sys.stdout.buffer.write(wire.encode(sample))"
    )
    command = [python, "-W", "error", "-c", code, str(tmp_path)]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout
    sample = wire.decode(output)
    assert isinstance(sample, wire.Sample)
    assert sample.cpu.logical_cores == os.cpu_count()
    assert 0 < sample.cpu.limit_cores <= sample.cpu.logical_cores
    assert 0 < sample.memory.used_bytes < sample.memory.limit_bytes
    assert sample.disk is not None
    assert 0 < sample.disk.used_bytes <= sample.disk.total_bytes


def test_a_sample_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    sampler = HostSampler(str(tmp_path))
    sampler.sample()
    batches = []
    for _ in range(10):
        started = time.process_time()
        for _ in range(20):
            sampler.sample()
        batches.append((time.process_time() - started) / 20)
    assert min(batches) < 0.001
    sampler.close()


def test_no_file_stays_open_that_is_not_needed(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    sampler = HostSampler(str(tmp_path))
    sampler.sample()
    while_open = open_files()
    for _ in range(50):
        sampler._slow_at = 0.0  # as if half a minute had passed
        sampler.sample()
    assert open_files() == while_open
    sampler.close()
    assert open_files() == before
