"""What an agent answers to `check`: a rented container with eight GPUs that is fit for training."""

from __future__ import annotations

import copy
from typing import Any

MIB, GIB = 1024**2, 1024**3

PYTHON = {
    "path": "/venv/main/bin/python",
    "version": "3.11.7",
    "torch": "2.9.1+cu128",
    "cuda": "12.8",
    "error": "",
}

HOST: dict[str, Any] = {
    "hostname": "c1",
    "kernel": "6.8.0-40-generic",
    "architecture": "x86_64",
    "uid": 0,
    "container": "docker",
    "provider": {"name": "Vast.ai", "why": "VAST_CONTAINERLABEL"},
    "provisioning": "",
    "cpu": {"logical_cores": 48, "affinity": 48, "quota": None, "usable": 48.0},
    "memory": {
        "used_bytes": 9 * GIB,
        "limit_bytes": 180 * GIB,
        "from_cgroup": True,
        "machine_bytes": 1007 * GIB,
    },
    "shm": {"path": "/dev/shm", "used_bytes": 0, "total_bytes": 64 * GIB},
    "disk": {"path": "/root/.encamp", "used_bytes": 118 * GIB, "total_bytes": 500 * GIB},
    "pids": {"used": 40, "limit": 65536},
    "home": {
        "path": "/root/.encamp",
        "error": "",
        "executable": True,
        "free_inodes": 9_000_000,
        "file_system": "overlay",
        "network": False,
    },
    "ulimits": {"nofile": [65536, 65536], "memlock": [-1, -1], "nproc": [-1, -1], "core": [0, -1]},
    "core_pattern": "|/usr/share/apport/apport",
    "ptrace": {"scope": 1, "capability": False},
    "infiniband": [],
}


def gpus(
    number: int = 8, model: str = "NVIDIA GeForce RTX 4090", driver: str = "570.133.20"
) -> dict[str, Any]:
    """The part about the GPUs: no NVLink, as consumer cards have none."""
    return {
        "state": "ok" if number else "none",
        "message": "" if number else "no NVIDIA GPU on this host",
        "driver": driver if number else "",
        "gpus": [
            {
                "index": index,
                "uuid": f"GPU-{index:08x}",
                "name": model,
                "state": "ok",
                "memory_total_bytes": 24 * GIB,
                "memory_used_bytes": 4 * MIB,
            }
            for index in range(number)
        ],
        "cuda": "12.8" if number else None,
        "processes": [],
        "links": [
            {"a": a, "b": b, "path": "hostbridge", "nvlinks": 0, "p2p": False}
            for a in range(number)
            for b in range(a + 1, number)
        ],
    }


def answer(
    number_of_gpus: int = 8, *, pythons: list[dict[str, Any]] | None = None, **changes: Any
) -> dict[str, Any]:
    """The whole answer. `changes` are fields of the host's part; a dict changes only the fields it names."""
    host = copy.deepcopy(HOST)
    for name, value in changes.items():
        host[name] = {**host[name], **value} if isinstance(value, dict) and host[name] else value
    return {
        "time": 1.8e9,
        "host": host,
        "interpreters": [dict(PYTHON)] if pythons is None else pythons,
        "gpu": gpus(number_of_gpus),
    }
