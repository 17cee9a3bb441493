"""The XIDs that NVIDIA's driver reports of its GPUs, for the NVML child: see `diagnosis/xid.py` for them.

They come as events of NVML, and stand in the kernel's log where we may read that: it also has what was
before we looked, and what happened to a GPU that NVML cannot speak of any more. Nothing here waits.
"""

from __future__ import annotations

import collections
import ctypes
import os
import re
import time
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

KERNEL_LOG = "/dev/kmsg"

MAX_KEPT = 8
"""The newest XIDs of a GPU that are remembered."""

MAX_EVENTS, MAX_RECORDS = 64, 65536
"""Events of NVML, and records of the kernel's log, that are taken at once."""

AGAIN_SECONDS = 30.0
"""After NVML refused events, before it is asked for them again: some refusals are for good, and cost."""

SAME_SECONDS = 5.0
"""The two sources tell of one event at most so far apart."""

_PLACE = r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.\d)?"
XID = re.compile(rf"NVRM: Xid \(PCI:{_PLACE}\): (\d{{1,4}})", re.I)
ADDRESS = re.compile(rf"{_PLACE}\Z", re.I)

Address = Tuple[int, ...]
"""PCI domain, bus and device."""

NVML, KERNEL = "nvml", "kernel"


def in_record(record: str) -> Optional[Tuple[float, Address, int]]:
    """Seconds since boot, GPU and number of the XID in a record of /dev/kmsg; None when it has none."""
    head, _, text = record.partition(";")
    found, fields = XID.search(text), head.split(",")
    if found is None or len(fields) < 3 or not fields[2].isdigit():
        return None
    return int(fields[2]) / 1e6, tuple(int(part, 16) for part in found.groups()[:3]), int(found[4])


def address(bus_id: str) -> Address:
    """A PCI address as numbers; empty for what is none."""
    found = ADDRESS.match(bus_id)
    return tuple(int(part, 16) for part in found.groups()) if found else ()


class Xids:
    """What has been heard of the GPUs that are watched. `kernel_log` is read like /dev/kmsg."""

    def __init__(self, nvml: Any, kernel_log: str = KERNEL_LOG) -> None:
        self._nvml = nvml
        self._handles: Dict[int, Any] = {}
        self._addresses: Dict[Address, int] = {}
        self._events: Any = None
        self._ask_again = 0.0
        self._heard: Dict[int, Deque[Tuple[float, int]]] = {}
        self._told: Dict[int, Deque[Tuple[float, int, str]]] = {}
        """The same before what both sources tell is counted once."""
        self._first = True
        try:
            self._log: Optional[int] = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # as in most containers
            self._log = None

    def watch(self, index: int, handle: Any) -> None:
        """Listen for that GPU, again when it has a new handle."""
        self._handles[index] = handle
        if self._log is not None:
            try:
                self._addresses[address(_text(self._nvml.nvmlDeviceGetPciInfo(handle).busId))] = index
            except self._nvml.NVMLError:
                pass
        if self._events is not None:
            self._register(handle)

    def of(self, index: int) -> Tuple[Dict[str, Any], ...]:
        """The newest of a GPU, oldest first, each as the fields of a `wire.Xid`."""
        return tuple({"time": at, "code": code} for at, code in self._heard.get(index, ()))

    def read(self) -> None:
        """Take in what has been reported since the last call."""
        now = time.time()
        for uptime, where, code in self._records():
            if where in self._addresses:
                # The clock of the log drifts: it counts only for what was there before us.
                at = now - time.monotonic() + uptime if self._first else now
                self._add(self._addresses[where], at, code, KERNEL)
        self._first = False
        for index, code in self._reported():
            self._add(index, now, code, NVML)

    def _add(self, index: int, at: float, code: int, source: str) -> None:
        told = self._told.setdefault(index, collections.deque(maxlen=4 * MAX_KEPT))
        told.append((at, code, source))
        near = [other for when, known, other in told if known == code and abs(when - at) < SAME_SECONDS]
        if near.count(source) > len(near) - near.count(source):  # it is not the other's that comes again
            self._heard.setdefault(index, collections.deque(maxlen=MAX_KEPT)).append((at, code))

    def _records(self) -> Iterator[Tuple[float, Address, int]]:
        for _ in range(MAX_RECORDS if self._log is not None else 0):
            assert self._log is not None
            try:
                record = os.read(self._log, 8192)
            except BrokenPipeError:
                continue  # it was overwritten before we came to it
            except OSError:
                return  # nothing new
            if not record:
                return
            found = in_record(record.decode("utf-8", "replace"))
            if found is not None:
                yield found

    def _reported(self) -> Iterator[Tuple[int, int]]:
        if self._events is None:
            self._begin()
        for _ in range(MAX_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError as error:
                if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                    self._end()
                return
            known = [index for index, handle in self._handles.items() if _same(handle, event.device)]
            if known and event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                yield known[0], int(event.eventData)

    def _begin(self) -> None:
        now = time.monotonic()
        if not self._handles or now < self._ask_again:
            return
        self._ask_again = now + AGAIN_SECONDS
        try:
            self._events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError:
            return
        for handle in self._handles.values():
            self._register(handle)

    def _register(self, handle: Any) -> None:
        try:
            self._nvml.nvmlDeviceRegisterEvents(
                handle, self._nvml.nvmlEventTypeXidCriticalError, self._events
            )
        except self._nvml.NVMLError:
            pass  # this GPU has none

    def _end(self) -> None:
        events, self._events = self._events, None
        try:
            self._nvml.nvmlEventSetFree(events)
        except self._nvml.NVMLError:
            pass


def _same(one: Any, other: Any) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
