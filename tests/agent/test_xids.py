"""XIDs from the kernel's log and from NVML: each counts once, whichever tells it first."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.xids import AGAIN_SECONDS, MAX_KEPT, Xids, address, in_record

LINE = "4,1234,5000000,-;NVRM: Xid (PCI:0000:0f:00): 79, pid=1896, GPU has fallen off the bus.\n"


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class Nvml:
    """As much of pynvml as is asked here, with one GPU at 0f:00.0."""

    NVMLError = NvmlError
    NVML_ERROR_TIMEOUT = 10
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.refuses = 0
        self.sets = 0

    def nvmlDeviceGetPciInfo(self, handle: object) -> Any:
        return SimpleNamespace(busId="00000000:0F:00.0")

    def nvmlEventSetCreate(self) -> str:
        self.sets += 1
        return "set"

    def nvmlEventSetFree(self, events: str) -> None: ...

    def nvmlDeviceRegisterEvents(self, handle: object, kind: int, events: str) -> None: ...

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        assert milliseconds == 0, "nobody may be kept waiting"
        if self.refuses or not self.reported:
            raise NvmlError(self.refuses or self.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(device=ctypes.c_void_p(1), eventType=8, eventData=self.reported.pop(0))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A log like the kernel's, of which a read gives a record or says that there is none; and its end."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    yield str(path), end
    os.close(end)


def codes(xids: Xids) -> list[int]:
    return [xid["code"] for xid in xids.of(0)]


def test_a_record_of_the_kernel() -> None:
    assert in_record(LINE) == (5.0, (0, 15, 0), 79)
    assert in_record("6,1,1,-;usb 1-1: new device") is None
    assert in_record("NVRM: Xid (PCI:0000:0f:00): 79") is None
    assert in_record("4,1,x,-;NVRM: Xid (PCI:0000:0f:00): 79") is None
    assert in_record("4,1,1,-;NVRM: Xid (PCI:0002:00:01.0): 119, Timeout") == (1e-6, (2, 0, 1), 119)
    assert address("00000000:0F:00.0") == (0, 15, 0)
    assert address("garbage") == ()


def test_what_was_before_is_read_from_the_log(log: tuple[str, int]) -> None:
    os.write(log[1], LINE.encode())
    xids = Xids(Nvml(), log[0])
    xids.watch(0, ctypes.c_void_p(1))
    xids.read()
    assert codes(xids) == [79]
    assert xids.of(0)[0]["time"] == pytest.approx(time.time() - time.monotonic() + 5.0, abs=1.0)


def test_what_both_tell_counts_once(log: tuple[str, int]) -> None:
    nvml = Nvml()
    xids = Xids(nvml, log[0])
    xids.watch(0, ctypes.c_void_p(1))
    xids.read()
    nvml.reported = [79]
    os.write(log[1], LINE.encode())
    xids.read()
    assert codes(xids) == [79]
    nvml.reported = [79]
    xids.read()
    os.write(log[1], LINE.replace("0f", "10").encode())  # another GPU, which nobody watches
    xids.read()
    assert codes(xids) == [79, 79], "the same number a second time is a second event"


def test_of_many_the_newest_are_kept() -> None:
    nvml = Nvml()
    xids = Xids(nvml, "/nowhere")
    xids.watch(0, ctypes.c_void_p(1))
    nvml.reported = list(range(20))
    xids.read()
    assert codes(xids) == list(range(20 - MAX_KEPT, 20))


def test_a_driver_that_refuses_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.refuses = 15
    xids = Xids(nvml, "/nowhere")
    xids.watch(0, ctypes.c_void_p(1))
    for _ in range(5):
        xids.read()
    assert nvml.sets == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + AGAIN_SECONDS + 1)
    nvml.refuses, nvml.reported = 0, [48]
    xids.read()
    assert (nvml.sets, codes(xids)) == (2, [48])
