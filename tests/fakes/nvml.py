"""Fake NVIDIA GPUs: a stand-in for `libnvidia-ml.so.1` that unmodified pynvml loads, and its controller.

A test makes a `FakeNvml`, starts a process with its `environment()` and changes the GPUs while the process
runs. A person can look at the app with eight GPUs on a machine that has none:

    python -m tests.fakes.nvml --gpus 8 -- encamp demo        runs a command on a host with fake GPUs
    eval "$(python -m tests.fakes.nvml --gpus 8)"             the same for all that this shell starts

`tests/fakes/nvml.c` is the library; `_State` and `_Gpu` here are the layout it shares.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import math
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
MAX_GPUS = 64
MAX_PROCESSES = 8
MAX_XIDS = 16
FOREVER = 2**63
HOSTBRIDGE = 30
"""NVML's level of two GPUs that have a CPU's PCIe host bridge in common."""

GIB = 1024**3

RESULTS = {
    "ok": 0,
    "uninitialized": 1,
    "no-permission": 4,
    "not-loaded": 9,
    "library-not-found": 12,
    "lost": 15,
    "reset-required": 16,
    "blocked": 17,
    "mismatch": 18,
    "unknown": 999,
}
"""NVML's return codes by the names that encamp gives to the states they mean."""

FEATURES = {"utilization": 1, "memory": 2, "power": 4, "power_limit": 8, "temperature": 16, "events": 32}


class _Gpu(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("memory_total", ctypes.c_uint64),
        ("memory_reserved", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("utilization", ctypes.c_uint32),
        ("memory_utilization", ctypes.c_uint32),
        ("power_milliwatts", ctypes.c_uint32),
        ("power_limit_milliwatts", ctypes.c_uint32),
        ("temperature", ctypes.c_uint32),
        ("unsupported", ctypes.c_uint32),
        ("result", ctypes.c_int32),
        ("processes", ctypes.c_uint32),
        ("pids", ctypes.c_uint32 * MAX_PROCESSES),
        ("process_memory", ctypes.c_uint64 * MAX_PROCESSES),
        ("links", ctypes.c_uint8 * MAX_GPUS),
        ("levels", ctypes.c_uint8 * MAX_GPUS),
        ("xids", ctypes.c_uint32),
        ("xid", ctypes.c_uint32 * MAX_XIDS),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_char * 8),
        ("gpu_count", ctypes.c_uint32),
        ("init_result", ctypes.c_int32),
        ("driver", ctypes.c_char * 80),
        ("hang_until", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("latency_microseconds", ctypes.c_uint32),
        ("crash", ctypes.c_uint32),
        ("noise", ctypes.c_uint32),
        ("cuda", ctypes.c_int32),
        ("nvswitch", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("gpus", _Gpu * MAX_GPUS),
    ]


class NoCompiler(RuntimeError):
    """There is no C compiler on this machine, so there can be no fake library."""


class FakeNvml:
    """A fake driver with `gpus` GPUs whose state lies in `directory`.

    `memory_v2=False` is an old driver without `nvmlDeviceGetMemoryInfo_v2` and `nvmlEventSetWait_v2`.
    Raises NoCompiler.
    """

    def __init__(
        self, directory: Path, gpus: int = 2, *, name: str = "NVIDIA GeForce RTX 4090", memory_v2: bool = True
    ) -> None:
        if not 0 <= gpus <= MAX_GPUS:
            raise ValueError(f"{gpus} GPUs: the fake has 0 to {MAX_GPUS}")
        self.library = build(memory_v2=memory_v2)
        self.state_file = directory / "nvml-state"
        with self.state_file.open("wb+") as file:
            file.truncate(ctypes.sizeof(_State))
            self._state = _State.from_buffer(mmap.mmap(file.fileno(), 0))
        self._state.driver = b"570.133.20"
        self._state.cuda = 12080
        self._state.gpu_count = gpus
        for index in range(gpus):
            gpu = self._state.gpus[index]
            gpu.uuid = f"GPU-{index:08x}-0000-4000-8000-000000000000".encode()
            gpu.name = name.encode()
            gpu.memory_total, gpu.memory_reserved, gpu.memory_used = 24 * GIB, GIB // 2, 0
            gpu.power_milliwatts, gpu.power_limit_milliwatts = 25_000, 450_000
            gpu.temperature = 35
            gpu.levels[:] = [HOSTBRIDGE] * MAX_GPUS
        # The magic comes last: whoever maps the file sees it whole.
        self._state.magic = b"FAKENVML"

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to see these GPUs instead of the machine's own."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self.state_file)}

    @property
    def calls(self) -> int:
        """How many calls have entered the library so far."""
        return int(self._state.calls)

    def set_driver(
        self,
        *,
        init: str | None = None,
        latency: float | None = None,
        noise: bool | None = None,
        version: str | None = None,
        cuda: int | None = None,
    ) -> None:
        """Change what `nvmlInit` says (a key of RESULTS), the seconds that every call takes, whether calls
        print to standard output, the driver's version, or its CUDA version as in 12080."""
        if version is not None:
            self._state.driver = version.encode()
        if cuda is not None:
            self._state.cuda = cuda
        if noise is not None:
            self._state.noise = int(noise)
        if init is not None:
            self._state.init_result = RESULTS[init]
        if latency is not None:
            self._state.latency_microseconds = round(latency * 1e6)

    def set_gpu(
        self,
        index: int,
        *,
        utilization: int | None = None,
        memory_used: int | None = None,
        memory_reserved: int | None = None,
        memory_total: int | None = None,
        power: float | None = None,
        power_limit: float | None = None,
        temperature: int | None = None,
        result: str | None = None,
        unsupported: tuple[str, ...] | None = None,
    ) -> None:
        """Change one GPU: percent, bytes, watts, degrees Celsius; `result` is a key of RESULTS that every
        call about it returns, `unsupported` names FEATURES it does not have."""
        gpu = self._state.gpus[index]
        if utilization is not None:
            gpu.utilization = utilization
        if memory_used is not None:
            gpu.memory_used = memory_used
        if memory_reserved is not None:
            gpu.memory_reserved = memory_reserved
        if memory_total is not None:
            gpu.memory_total = memory_total
        if power is not None:
            gpu.power_milliwatts = round(power * 1000)
        if power_limit is not None:
            gpu.power_limit_milliwatts = round(power_limit * 1000)
        if temperature is not None:
            gpu.temperature = temperature
        if unsupported is not None:
            gpu.unsupported = sum(FEATURES[feature] for feature in unsupported)
        if result is not None:
            gpu.result = RESULTS[result]

    def report(self, index: int, xid: int) -> None:
        """Let the driver report an XID of a GPU, to whoever listens by now."""
        gpu = self._state.gpus[index]
        gpu.xid[gpu.xids % MAX_XIDS] = xid
        gpu.xids += 1

    def join(self, one: int, other: int, links: int, *, switch: bool = False) -> None:
        """Put so many NVLinks between two GPUs; with `switch` they, and all others, lead to an NVSwitch."""
        self._state.gpus[one].links[other] = self._state.gpus[other].links[one] = links
        self._state.nvswitch = int(switch)

    def occupy(self, index: int, *pids: int, memory: int = GIB) -> None:
        """Let exactly these processes be on a GPU, each with so many bytes."""
        gpu = self._state.gpus[index]
        gpu.pids[: len(pids)] = pids
        gpu.process_memory[: len(pids)] = [memory] * len(pids)
        gpu.processes = len(pids)

    def hang(self, seconds: float | None = None) -> None:
        """Let every call block for `seconds` from now on, or until `release`."""
        self._state.hang_until = FOREVER if seconds is None else time.monotonic_ns() + round(seconds * 1e9)

    def release(self) -> None:
        """End a hang."""
        self._state.hang_until = 0

    def crash(self, crashing: bool = True) -> None:
        """Let every call end the calling process by a segmentation fault."""
        self._state.crash = int(crashing)

    def animate(self, seconds: float) -> None:
        """Set every GPU to the values of a training that has gone on for `seconds`."""
        for index in range(self._state.gpu_count):
            wave = math.sin(seconds / 7 + index) * math.sin(seconds / 3 + 2 * index)
            warm = min(1.0, seconds / 60)
            self.set_gpu(
                index,
                utilization=round(94 + 5 * wave),
                memory_used=round((20.5 + 0.2 * (index % 3) + 0.3 * max(0.0, wave)) * GIB),
                power=395 + 35 * wave - 3 * index,
                temperature=round(38 + 30 * warm + 2 * wave + index % 4),
            )


def build(*, memory_v2: bool = True) -> Path:
    """The compiled library; it is compiled once for each content of its source. Raises NoCompiler."""
    flags = [] if memory_v2 else ["-DWITHOUT_MEMORY_V2"]
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"encamp-fake-nvml-{os.getuid()}" / digest
    library = folder / "libnvidia-ml.so.1"
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompiler("the fake NVML library needs a C compiler (gcc)")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = folder / f"{os.getpid()}.part"
    arguments = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", *flags, "-o", part, SOURCE]
    subprocess.run([compiler, *arguments], check=True)
    part.replace(library)
    return library


def main(argv: list[str] | None = None) -> int:
    """Offer fake GPUs to a command, or to the shell that evaluates what is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.nvml", description=__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--name", default="NVIDIA GeForce RTX 4090")
    parser.add_argument("--old-driver", action="store_true", help="a driver without memory v2")
    parser.add_argument(
        "--lost", type=int, action="append", default=[], metavar="GPU", help="a GPU that is lost"
    )
    parser.add_argument("--idle", action="store_true", help="GPUs that do nothing, instead of training")
    parser.add_argument(
        "--init", choices=sorted(RESULTS), default="ok", help="what the driver says at its start"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the state lies (default: a new temporary folder)"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="-- COMMAND ...: runs on a host with these GPUs"
    )
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    with contextlib.ExitStack() as stack:
        directory = options.directory
        if directory is None and command:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="encamp-fake-nvml-")))
        elif directory is None:
            directory = Path(tempfile.mkdtemp(prefix="encamp-fake-nvml-"))
        directory.mkdir(parents=True, exist_ok=True)
        fake = FakeNvml(directory, options.gpus, name=options.name, memory_v2=not options.old_driver)
        fake.set_driver(init=options.init)
        for index in options.lost:
            fake.set_gpu(index, result="lost")
        if not options.idle:
            fake.animate(90)
        if not command:
            for key, value in fake.environment().items():
                print(f"export {key}={value}")
            return 0
        return _run(fake, command, moving=not options.idle)


def _run(fake: FakeNvml, command: list[str], *, moving: bool) -> int:
    ended = threading.Event()
    started = time.monotonic()

    def move() -> None:
        while not ended.wait(0.5):
            fake.animate(time.monotonic() - started)

    if moving:
        threading.Thread(target=move, daemon=True).start()
    try:
        return subprocess.run(command, env={**os.environ, **fake.environment()}, check=False).returncode
    finally:
        ended.set()


if __name__ == "__main__":
    sys.exit(main())
