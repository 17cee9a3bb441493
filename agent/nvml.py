"""The NVML child: a process that asks NVIDIA's driver once a second and prints what it said.

It is a process of its own because a call into the driver can block for ever or crash; `gpu.py` starts it,
watches the clock and kills it. It prints one JSON object a line, with the fields of `wire.GpuStatus`, and
ends when its standard input closes. When the driver cannot be used at all, it prints one line that says
why, and ends. Whenever something is written to it, it prints a `survey` besides: how the GPUs are joined and
which processes are on them.

Calls are in tiers, because they cost from 2 us to milliseconds and hold a lock in the driver: each second
utilisation, memory, power and XIDs; every 5 s temperature and power limit; identity once. A GPU that is lost
or needs a reset is left alone but for one look every 30 s: calls on it are slow and may crash.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import survey, xids
from .driver import LIBRARY, NO_GPU

STDIN, STDOUT, STDERR = 0, 1, 2

PERIOD_SECONDS = 1.0
SLOW_SECONDS = 5.0
UNWELL_SECONDS = 30.0

PR_SET_PDEATHSIG = 1

# Return codes of NVML, as in nvml.h and pynvml, which is imported only in `main`.
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25

STATES = {
    NO_PERMISSION: "no-permission",
    DRIVER_NOT_LOADED: "not-loaded",
    LIBRARY_NOT_FOUND: "none",
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "reset-required",
    OPERATING_SYSTEM: "blocked",
    LIB_RM_VERSION_MISMATCH: "mismatch",
}
"""The code of an NVML error -> the state in `wire.GPU_STATES` that it means; all others are `error`."""

NO_VALUE = (NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH)
"""Answers that say "this GPU, or this driver, does not tell": no fault of anybody."""

WHOLE_DRIVER = (UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH)
"""Answers to a question about one GPU that are about the driver as a whole."""

SENTENCES = {
    "none": NO_GPU,
    "not-loaded": "the NVIDIA driver is not loaded: after installing it, the host must be rebooted",
    "no-permission": "this user may not use the NVIDIA driver: look at the permissions of /dev/nvidia*",
    "blocked": "the NVIDIA devices are blocked for this container: it must be started again with its GPUs",
    "mismatch": "NVIDIA's driver and library are of different versions: reboot, or restart the container",
    "lost": "has fallen off the bus: the host must be rebooted",
    "reset-required": "must be reset, or the host rebooted",
    "error": "the NVIDIA driver does not work",
}
"""What a state means and what to do about it. Those of one GPU go on from "GPU 3 ..."."""

Json = Dict[str, Any]


def driver_status(state: str, message: str, driver: str = "", gpus: Tuple[Json, ...] = ()) -> Json:
    """The fields of a `wire.GpuStatus` read just now."""
    return {"state": state, "message": message, "time": time.time(), "driver": driver, "gpus": gpus}


class Gpu:
    """One GPU: its identity, the values of the slower tiers, and whether it can be asked at the moment."""

    def __init__(self, nvml: Any, index: int, reported: xids.Xids) -> None:
        self._nvml = nvml
        self._reported = reported
        self._handle: Any = None
        self._slow: Json = {}
        self._slow_at = 0.0
        self._ask_again = 0.0
        self._memory_v2 = True
        self.index = index
        self.fields: Json = {"index": index, "uuid": "", "name": "", "state": "error"}

    @property
    def handle(self) -> Any:
        """What NVML calls it; None while it must be left alone."""
        return self._handle

    def read(self, now: float) -> Json:
        """The fields of a `wire.GpuSample`; `now` is monotonic. Raises NVMLError of the driver as a whole."""
        if now < self._ask_again:
            return self.fields
        try:
            values = self._read_values(now)
        except self._nvml.NVMLError as error:
            if error.value in WHOLE_DRIVER:
                raise
            self._handle = None
            self._ask_again = now + UNWELL_SECONDS
            self.fields["state"] = STATES.get(error.value, "error")
            return self.fields
        return {**self.fields, **values}

    def _read_values(self, now: float) -> Json:
        nvml = self._nvml
        if self._handle is None:
            handle = nvml.nvmlDeviceGetHandleByIndex(self.fields["index"])
            self.fields["uuid"] = nvml.nvmlDeviceGetUUID(handle)
            self.fields["name"] = nvml.nvmlDeviceGetName(handle)
            self._handle = handle
            self._slow_at = now
            self._reported.watch(self.index, handle)
        refused: List[Any] = []
        values: Json = {}
        rates = self._ask(refused, nvml.nvmlDeviceGetUtilizationRates)
        if rates is not None:
            values["utilization_percent"] = min(100.0, float(rates.gpu))
        values.update(self._memory(refused))
        power = self._ask(refused, nvml.nvmlDeviceGetPowerUsage)
        if power is not None:
            values["power_watts"] = power / 1000
        if refused and not values:
            raise refused[0]
        if now >= self._slow_at:
            self._slow_at = now + SLOW_SECONDS
            self._slow = self._read_slow()
        self.fields["state"] = "ok"
        return {**values, **self._slow}

    def _read_slow(self) -> Json:
        values: Json = {}
        limit = self._ask([], self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        if limit is not None:
            values["power_limit_watts"] = limit / 1000
        temperature = self._ask([], self._nvml.nvmlDeviceGetTemperature, self._nvml.NVML_TEMPERATURE_GPU)
        if temperature is not None:
            values["temperature_celsius"] = float(temperature)
        return values

    def _memory(self, refused: List[Any]) -> Json:
        memory = None
        if self._memory_v2:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2)
            except self._nvml.NVMLError as error:
                if error.value not in NO_VALUE:
                    return self._refuse(refused, error)
                self._memory_v2 = False
        if memory is None:
            memory = self._ask(refused, self._nvml.nvmlDeviceGetMemoryInfo)
        if memory is None or memory.total == 0:  # parts that share the machine's memory say 0, or nothing
            return {}
        values: Json = {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
        if self._memory_v2:
            values["memory_reserved_bytes"] = memory.reserved
        return values

    def _ask(self, refused: List[Any], question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where there is none; an error that is not the GPU's end goes to `refused`."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value not in NO_VALUE:
                self._refuse(refused, error)
            return None

    @staticmethod
    def _refuse(refused: List[Any], error: Any) -> Json:
        if error.value in (GPU_IS_LOST, RESET_REQUIRED, *WHOLE_DRIVER):
            raise error
        refused.append(error)
        return {}


class Driver:
    """The NVIDIA driver of this host, initialised. Raises NVMLError when it cannot be."""

    def __init__(self, nvml: Any) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        self._version = nvml.nvmlSystemGetDriverVersion()
        self._xids = xids.Xids(nvml)
        self._gpus = [Gpu(nvml, index, self._xids) for index in range(nvml.nvmlDeviceGetCount())]

    def read(self) -> Json:
        """The fields of a `wire.GpuStatus`. Raises NVMLError when the driver as a whole no longer answers."""
        if not self._gpus:
            return driver_status("none", NO_GPU, self._version)
        now = time.monotonic()
        gpus = tuple(gpu.read(now) for gpu in self._gpus)
        self._xids.read()
        gpus = tuple({**gpu, "xids": self._xids.of(gpu["index"])} for gpu in gpus)
        unwell = [gpu for gpu in gpus if gpu["state"] != "ok"]
        message = "; ".join(f"GPU {gpu['index']} {_of_one_gpu(gpu['state'])}" for gpu in unwell)
        return driver_status("ok", message, self._version, gpus)

    def survey(self) -> Json:
        """See `survey.read`. Raises NVMLError when the driver as a whole no longer answers."""
        handles = [(gpu.index, gpu.handle) for gpu in self._gpus if gpu.handle is not None]
        return survey.read(self._nvml, handles, WHOLE_DRIVER)


def _of_one_gpu(state: str) -> str:
    return SENTENCES[state] if state in ("lost", "reset-required") else f"cannot be read ({state})"


def describe(error: Any) -> Json:
    """The fields of a `wire.GpuStatus` for an NVMLError of the driver as a whole."""
    state = STATES.get(error.value, "error")
    sentence = SENTENCES[state]
    unloadable = _why_not_loaded() if error.value == LIBRARY_NOT_FOUND else ""
    if unloadable:
        state, sentence = "error", f"the NVIDIA library is here but cannot be loaded: {unloadable}"
    elif state in ("lost", "reset-required"):
        sentence = "a GPU " + sentence
    elif state == "error":
        sentence = f"{sentence}: {error}"
    return driver_status(state, sentence)


def _why_not_loaded() -> str:
    """What the dynamic linker has against the library; empty when there is none. pynvml drops these words."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return "" if "No such file" in str(error) else str(error)
    return ""


def main(arguments: List[str]) -> int:
    """Print a status a second until standard input closes. Exit code 0, also when there is no driver."""
    del arguments
    output = _own_stdout()
    _die_with_parent()
    try:
        _report(output)
    except BrokenPipeError:
        pass  # the daemon has gone
    return 0


def _report(output: int) -> None:
    try:
        import pynvml
    except ImportError:
        _print(output, driver_status("error", "this agent carries no pynvml, so it cannot read GPUs"))
        return
    try:
        driver = Driver(pynvml)
        due = time.monotonic()
        while True:
            status = driver.read()
            _print(output, status)
            due = max(due + PERIOD_SECONDS, time.monotonic())
            if status["state"] != "ok":
                return
            while True:
                said = _said(due)
                if said is None:
                    break
                if not said:
                    return
                _print(output, {"survey": driver.survey()})
    except pynvml.NVMLError as error:
        _print(output, describe(error))


def _own_stdout() -> int:
    """A descriptor for our lines alone: a library that prints to standard output must not disturb them."""
    output = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return output


def _die_with_parent() -> None:
    # Closing our standard input ends us between two calls; this ends us within one that does not return.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _print(output: int, status: Json) -> None:
    line = json.dumps(status, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(output, line) :]


def _said(due: float) -> Optional[bytes]:
    """What is written to us, empty at the end of that; None when nothing is by the monotonic time `due`."""
    readable, _, _ = select.select([STDIN], [], [], max(0.0, due - time.monotonic()))
    return os.read(STDIN, 4096) if readable else None
