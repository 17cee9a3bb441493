"""Whether there is a driver at all, told from files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent import driver
from agent.driver import LIBRARY, Found, Missing, find


def touch(root: Path, path: str, content: bytes = b"") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def pci(root: Path, vendor: str, kind: str) -> None:
    touch(root, "sys/bus/pci/devices/0000:01:00.0/vendor", vendor.encode() + b"\n")
    touch(root, "sys/bus/pci/devices/0000:01:00.0/class", kind.encode() + b"\n")


@pytest.mark.parametrize(
    "path",
    [f"usr/lib/{LIBRARY}", f"usr/lib64/{LIBRARY}", f"lib/{os.uname().machine}-linux-gnu/{LIBRARY}"],
)
def test_a_library_where_the_linker_looks(tmp_path: Path, path: str) -> None:
    touch(tmp_path, path)
    assert find(str(tmp_path)) == Found()


def test_a_library_that_the_linker_has_noted(tmp_path: Path) -> None:
    touch(tmp_path, "etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/opt/x/libnvidia-ml.so.1\0")
    assert find(str(tmp_path)) == Found()
    touch(tmp_path, "etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libnvidia-ml.so.10\0")
    assert find(str(tmp_path)) == Missing("none", driver.NO_GPU)


def test_a_library_that_the_environment_names(tmp_path: Path) -> None:
    folder = touch(tmp_path, f"opt/driver/{LIBRARY}").parent
    assert find(str(tmp_path)) == Missing("none", driver.NO_GPU)
    assert find(str(tmp_path), f"/nowhere::{folder}") == Found()


def test_a_library_that_only_the_platform_knows_is_named_to_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = touch(tmp_path, f"usr/local/nvidia/lib64/{LIBRARY}").parent
    found = find(str(tmp_path))
    assert found == Found(str(folder))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/other")
    assert found.environment()["LD_LIBRARY_PATH"] == f"{folder}:/other"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert found.environment()["LD_LIBRARY_PATH"] == str(folder)
    assert "LD_LIBRARY_PATH" not in Found().environment()


def test_gpus_without_a_library_are_a_fault(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidia0")
    found = find(str(tmp_path))
    assert isinstance(found, Missing)
    assert found.state == "error"
    assert LIBRARY in found.message


def test_a_gpu_without_a_driver_is_named(tmp_path: Path) -> None:
    pci(tmp_path, "0x10de", "0x030200")
    assert find(str(tmp_path)) == Missing(
        "not-loaded", "an NVIDIA GPU is built in but has no driver: install one and reboot"
    )
    touch(tmp_path, "proc/driver/nvidia/version")
    assert find(str(tmp_path)) == Missing("none", driver.NO_GPU), "the machine's GPU was not given to us"


@pytest.mark.parametrize(("vendor", "kind"), [("0x1002", "0x030000"), ("0x10de", "0x040300"), ("", "")])
def test_other_hardware_is_no_nvidia_gpu(tmp_path: Path, vendor: str, kind: str) -> None:
    pci(tmp_path, vendor, kind)
    assert find(str(tmp_path)) == Missing("none", driver.NO_GPU)


def test_looking_takes_a_few_milliseconds_at_most() -> None:
    started = time.process_time()
    for _ in range(10):
        find()
    assert (time.process_time() - started) / 10 < 0.005
