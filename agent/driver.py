"""Whether this host has NVIDIA's library at all, told from a few files: no process is spent to ask.

`gpu.py` asks here first, so that a host without GPUs never starts the NVML child.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from typing import Dict, Union

LIBRARY = "libnvidia-ml.so.1"

NO_GPU = "no NVIDIA GPU on this host"

LIBRARY_DIRS = ("lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib")
"""Where the dynamic linker looks by itself, below `/`; the multi-arch folder of each `lib` is added."""

HIDDEN_DIRS = ("usr/local/nvidia/lib64", "usr/lib/wsl/lib", "run/opengl-driver/lib")
"""Where container platforms, WSL and NixOS put the library; an SSH session may lack the variable for it."""


@dataclasses.dataclass(frozen=True)
class Found:
    """The library is here, in `folder`; empty when the dynamic linker knows where by itself."""

    folder: str = ""

    def environment(self) -> Dict[str, str]:
        """Our own environment, changed so that a child process finds the library."""
        paths = [self.folder, os.environ.get("LD_LIBRARY_PATH", "")] if self.folder else []
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))} if paths else dict(os.environ)


@dataclasses.dataclass(frozen=True)
class Missing:
    """There is no library, so there is nothing to ask: why that is so, as a state and a sentence."""

    state: str
    message: str


def find(root: str = "/", library_path: str = "") -> Union[Found, Missing]:
    """Whether this host has NVIDIA's library, from a few files below `root`: takes well under a millisecond.

    `library_path` is the value of LD_LIBRARY_PATH.
    """
    if any(_has_library(folder) for folder in library_path.split(":") if folder):
        return Found()
    try:
        with open(os.path.join(root, "etc/ld.so.cache"), "rb") as cache:
            if LIBRARY.encode() + b"\0" in cache.read():
                return Found()
    except OSError:
        pass  # musl has none
    arch = os.uname().machine + "-linux-gnu"
    for folder in LIBRARY_DIRS:
        if any(_has_library(os.path.join(root, folder, part)) for part in ("", arch)):
            return Found()
    for folder in HIDDEN_DIRS:
        if _has_library(os.path.join(root, folder)):
            return Found(os.path.join(root, folder))
    if glob.glob(os.path.join(root, "dev/nvidia[0-9]*")):
        return Missing(
            "error",
            f"NVIDIA GPUs are here but {LIBRARY} is not: the container lacks the driver's libraries",
        )
    if not os.path.exists(os.path.join(root, "proc/driver/nvidia")) and _has_nvidia_hardware(root):
        return Missing("not-loaded", "an NVIDIA GPU is built in but has no driver: install one and reboot")
    return Missing("none", NO_GPU)


def _has_library(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, LIBRARY))


def _has_nvidia_hardware(root: str) -> bool:
    for device in glob.glob(os.path.join(root, "sys/bus/pci/devices/*")):
        try:
            with open(os.path.join(device, "vendor"), encoding="ascii") as vendor:
                if vendor.read().strip() != "0x10de":
                    continue
            with open(os.path.join(device, "class"), encoding="ascii") as kind:
                if kind.read().startswith("0x03"):  # display controllers, headless ones too
                    return True
        except OSError:
            continue  # a device that is being removed
    return False
