"""Control groups of both versions, laid out as containers, Slurm and systemd really lay them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import (
    HOST_NAMESPACE,
    Cgroups,
    Memory,
    Mount,
    Pids,
    Throttling,
    parse_groups,
    parse_mounts,
    parse_number,
    parse_table,
)

GIB = 1024**3
NO_LIMIT_1 = "9223372036854771712"
OTHER_NAMESPACE = "cgroup:[4026532717]"


class Machine:
    """A folder that stands for `/`, with the files that matter here."""

    def __init__(self, root: Path, groups: str, mounts: str, namespace: str = HOST_NAMESPACE) -> None:
        self.root = root
        self.write("proc/self/cgroup", groups)
        self.write("proc/self/mountinfo", "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/a\n" + mounts)
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/cgroup").symlink_to(namespace)

    def write(self, path: str, text: str | int) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def group(self, path: str, **values: str | int) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            self.write(f"{path}/{name.replace('__', '.')}", value)

    def cgroups(self) -> Cgroups:
        return Cgroups(str(self.root))


def lines(**values: int) -> str:
    return "\n".join(f"{name} {value}" for name, value in values.items())


MOUNT_2 = "31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def mount_1(controllers: str, root: str = "/") -> str:
    where = f"/sys/fs/cgroup/{controllers}"
    return f"40 22 0:30 {root} {where} ro,nosuid master:9 - cgroup cgroup rw,{controllers}\n"


def container_2(root: Path) -> Machine:
    """Docker or podman on version 2: a namespace of its own, the limits in its highest group."""
    machine = Machine(root, "0::/\n", MOUNT_2, OTHER_NAMESPACE)
    machine.group(
        "sys/fs/cgroup",
        memory__max=180 * GIB,
        memory__current=100 * GIB,
        memory__stat=lines(
            anon=1, shmem=3, inactive_file=30 * GIB, active_file=10 * GIB, slab_reclaimable=GIB
        ),
        cpu__max="4600000 100000",
        cpu__stat=lines(
            usage_usec=7_500_000, user_usec=1, nr_periods=1000, nr_throttled=40, throttled_usec=9
        ),
        pids__max=1024,
        pids__current=321,
    )
    return machine


def test_version_2_in_a_container(tmp_path: Path) -> None:
    cgroups = container_2(tmp_path).cgroups()
    assert cgroups.memory.read() == Memory(59 * GIB, 180 * GIB)
    assert cgroups.cpu.limit == 46.0
    assert cgroups.cpu.seconds() == 7.5
    assert cgroups.cpu.throttling() == Throttling(1000, 40)
    assert cgroups.pids.read() == Pids(321, 1024)
    cgroups.close()


def test_values_are_read_anew_each_time(tmp_path: Path) -> None:
    machine = container_2(tmp_path)
    cgroups = machine.cgroups()
    assert cgroups.pids.read() == Pids(321, 1024)
    machine.group("sys/fs/cgroup", memory__current=50 * GIB, cpu__stat="usage_usec 9000000", pids__current=7)
    assert cgroups.memory.read() == Memory(9 * GIB, 180 * GIB)
    assert cgroups.cpu.seconds() == 9.0
    assert cgroups.cpu.throttling() is None
    assert cgroups.pids.read() == Pids(7, 1024)
    for name in ("memory.current", "memory.stat", "pids.current", "cpu.stat"):
        (tmp_path / "sys/fs/cgroup" / name).unlink()
    cgroups.close()
    assert cgroups.memory.read() is None
    assert cgroups.pids.read() is None
    assert cgroups.cpu.seconds() is None


def test_version_2_in_a_container_without_limits(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n", MOUNT_2, OTHER_NAMESPACE)
    machine.group(
        "sys/fs/cgroup", memory__max="max", memory__current=5, cpu__max="max 100000", pids__max="max",
        cpu__stat="usage_usec 2500000\nuser_usec 1\nsystem_usec 1",
    )  # fmt: skip
    cgroups = machine.cgroups()
    assert cgroups.memory.read() is None
    assert cgroups.cpu.limit is None
    assert cgroups.cpu.throttling() is None
    assert cgroups.cpu.seconds() == 2.5  # what this container uses, not what the machine does
    assert cgroups.pids.read() is None


def test_version_2_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/user.slice/user-7.slice/session-3.scope\n", MOUNT_2)
    machine.group("sys/fs/cgroup")
    machine.group(
        "sys/fs/cgroup/user.slice",
        memory__max=64 * GIB,
        cpu__max="800000 100000",
        pids__max=9000,
        memory__current=1,
    )
    machine.group(
        "sys/fs/cgroup/user.slice/user-7.slice",
        memory__max=16 * GIB,
        memory__current=9 * GIB,
        memory__stat=f"inactive_file {GIB}",
        cpu__max="150000 50000",
        cpu__stat="usage_usec 1000000\nnr_periods 3\nnr_throttled 1",
        pids__max=500,
        pids__current=20,
    )
    machine.group(
        "sys/fs/cgroup/user.slice/user-7.slice/session-3.scope",
        memory__max="max",
        memory__current=1,
        cpu__max="max 100000",
        cpu__stat="usage_usec 5",
        pids__max="max",
        pids__current=2,
    )
    cgroups = machine.cgroups()
    assert cgroups.memory.read() == Memory(8 * GIB, 16 * GIB)
    assert cgroups.cpu.limit == 3.0
    assert cgroups.cpu.seconds() == 1.0
    assert cgroups.cpu.throttling() == Throttling(3, 1)
    assert cgroups.pids.read() == Pids(20, 500)


def test_a_whole_machine_is_left_to_proc_stat(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/user.slice\n", MOUNT_2)
    machine.group("sys/fs/cgroup", cpu__stat="usage_usec 5")
    machine.group(
        "sys/fs/cgroup/user.slice", cpu__max="max 100000", cpu__stat="usage_usec 1", memory__max="max"
    )
    cgroups = machine.cgroups()
    assert cgroups.cpu.seconds() is None
    assert cgroups.memory.read() is None


DOCKER_1 = "/docker/0123abcd"


def container_1(root: Path, *, namespace: bool) -> Machine:
    """Docker on version 1: groups are bind-mounted; without a namespace it sees its path on the machine."""
    own, mount_root = ("/", "/") if namespace else (DOCKER_1, DOCKER_1)
    groups = f"9:pids:{own}\n5:memory:{own}\n4:cpu,cpuacct:{own}\n1:name=systemd:{own}\n0::/system.slice\n"
    mounts = "".join(mount_1(name, mount_root) for name in ("memory", "cpu,cpuacct", "pids"))
    machine = Machine(root, groups, mounts, OTHER_NAMESPACE if namespace else HOST_NAMESPACE)
    machine.group(
        "sys/fs/cgroup/memory",
        memory__limit_in_bytes=32 * GIB,
        memory__usage_in_bytes=20 * GIB,
        memory__stat=f"cache 1\ninactive_file 7\ntotal_inactive_file {6 * GIB}\ntotal_active_file {2 * GIB}",
    )
    machine.group(
        "sys/fs/cgroup/cpu,cpuacct",
        cpu__cfs_quota_us=250000,
        cpu__cfs_period_us=100000,
        cpu__stat="nr_periods 10\nnr_throttled 5\nthrottled_time 3",
        cpuacct__usage=12_500_000_000,
    )
    machine.group("sys/fs/cgroup/pids", pids__max="max", pids__current=4)
    return machine


@pytest.mark.parametrize("namespace", [True, False])
def test_version_1_in_a_container(tmp_path: Path, namespace: bool) -> None:
    cgroups = container_1(tmp_path, namespace=namespace).cgroups()
    assert cgroups.memory.read() == Memory(12 * GIB, 32 * GIB)
    assert cgroups.cpu.limit == 2.5
    assert cgroups.cpu.seconds() == 12.5
    assert cgroups.cpu.throttling() == Throttling(10, 5)
    assert cgroups.pids.read() is None


@pytest.mark.parametrize("namespace", [True, False])
def test_version_1_in_a_container_without_a_quota(tmp_path: Path, namespace: bool) -> None:
    machine = container_1(tmp_path, namespace=namespace)
    machine.group("sys/fs/cgroup/cpu,cpuacct", cpu__cfs_quota_us=-1)
    machine.group("sys/fs/cgroup/memory", memory__limit_in_bytes=NO_LIMIT_1)
    cgroups = machine.cgroups()
    assert cgroups.cpu.limit is None
    assert cgroups.cpu.seconds() == 12.5
    assert cgroups.memory.read() == Memory(12 * GIB, int(NO_LIMIT_1))


def test_version_1_in_a_group_inside_of_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"5:memory:{DOCKER_1}/job/7\n", mount_1("memory", DOCKER_1))
    machine.group("sys/fs/cgroup/memory", memory__limit_in_bytes=32 * GIB, memory__usage_in_bytes=20 * GIB)
    machine.group("sys/fs/cgroup/memory/job", memory__limit_in_bytes=GIB, memory__usage_in_bytes=7)
    machine.group("sys/fs/cgroup/memory/job/7", memory__limit_in_bytes=NO_LIMIT_1, memory__usage_in_bytes=3)
    assert machine.cgroups().memory.read() == Memory(7, GIB)


def test_version_1_with_cpu_and_cpuacct_apart(tmp_path: Path) -> None:
    groups = "3:cpuacct:/job/7\n2:cpu:/job/7\n"
    machine = Machine(tmp_path, groups, mount_1("cpu") + mount_1("cpuacct"))
    machine.group("sys/fs/cgroup/cpu/job/7", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    machine.group("sys/fs/cgroup/cpu/job", cpu__cfs_quota_us=400000, cpu__cfs_period_us=100000)
    machine.group("sys/fs/cgroup/cpuacct/job/7", cpuacct__usage=1)
    machine.group("sys/fs/cgroup/cpuacct/job", cpuacct__usage=3_000_000_000)
    cgroups = machine.cgroups()
    assert cgroups.cpu.limit == 4.0
    assert cgroups.cpu.seconds() == 3.0


def test_both_versions_mounted_the_controllers_are_where_version_1_has_them(tmp_path: Path) -> None:
    mounts = mount_1("memory") + MOUNT_2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    machine = Machine(tmp_path, "4:memory:/a\n0::/b\n", mounts)
    machine.group(
        "sys/fs/cgroup/memory/a", memory__limit_in_bytes=GIB, memory__usage_in_bytes=5, memory__stat=""
    )
    machine.group("sys/fs/cgroup/unified/b", pids__max=50, pids__current=3)
    cgroups = machine.cgroups()
    assert cgroups.memory.read() == Memory(5, GIB)
    assert cgroups.pids.read() == Pids(3, 50)


@pytest.mark.parametrize("groups", ["", "0::/../../elsewhere\n", "0::/not/there\n", "garbage\n"])
@pytest.mark.parametrize("mounts", ["", MOUNT_2, "31 22 0:27 /\n", MOUNT_2.replace("/sys", "/missing")])
def test_without_readable_groups_there_are_no_limits(tmp_path: Path, groups: str, mounts: str) -> None:
    cgroups = Machine(tmp_path, groups, mounts).cgroups()
    assert cgroups.memory.read() is None
    assert (cgroups.cpu.limit, cgroups.cpu.seconds(), cgroups.cpu.throttling()) == (None, None, None)
    assert cgroups.pids.read() is None


def test_without_proc_there_are_no_limits(tmp_path: Path) -> None:
    assert Cgroups(str(tmp_path)).memory.read() is None


def test_the_group_outside_of_the_namespace_still_has_the_limits_of_what_is_seen(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../other\n", MOUNT_2, OTHER_NAMESPACE)
    machine.group("sys/fs/cgroup", pids__max=5, pids__current=1)
    machine.group("sys/fs/other", pids__max=2, pids__current=2)  # what the path would lead to
    assert machine.cgroups().pids.read() == Pids(1, 5)


def test_mounts_with_blanks_in_their_names() -> None:
    line = r"31 22 0:27 /a\040b /sys/fs/my\040groups rw - cgroup2 cgroup2 rw"
    assert parse_mounts(line) == [Mount("/a b", "/sys/fs/my groups", 2, ())]


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    for mount in parse_mounts(text + " - cgroup " + text):
        assert mount.version in (1, 2)
    assert all(path.startswith("/") for path in parse_groups(text).values())


@given(st.binary(max_size=200))
def test_no_bytes_break_the_number_parsers(data: bytes) -> None:
    number = parse_number(data)
    assert number is None or number >= 0
    assert all(value >= 0 for value in parse_table(data).values())


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)


@given(st.dictionaries(st.lists(names, min_size=1, max_size=3).map(tuple), names, max_size=5))
def test_groups_come_back_as_they_were_written(groups: dict[tuple[str, ...], str]) -> None:
    text = "".join(
        f"{number}:{','.join(controllers)}:/{path}:with-colon\n"
        for number, (controllers, path) in enumerate(groups.items())
    )
    parsed = parse_groups(text)
    expected = {name: f"/{path}:with-colon" for controllers, path in groups.items() for name in controllers}
    assert parsed == expected
