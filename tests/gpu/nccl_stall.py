"""On GPUs: a run that hangs in NCCL, and what the agent sees of it: the parts that a CPU cannot show.

Usage: nccl_stall.py [--cpu]. Prints one JSON object and takes two minutes. Needs torch and nvidia-ml-py.

With one GPU its only rank waits behind a kernel that spins; with several, and on the CPU with gloo, rank 1
sleeps and the others wait for it in an all_reduce. In the answer stand: the verdict; what of torch's flight
record can be had, by which handler; the main thread's stack, asked by signal; use and power of the GPU while
it spins; what NCCL itself says (RAS).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "agent")]

from agent_client import AgentHost, Connection  # noqa: E402
from waiting import wait_until  # noqa: E402

from agent import typed  # noqa: E402
from agent.diagnosis import Evidence, diagnose, places  # noqa: E402
from agent.signals import flight  # noqa: E402

HANDLERS = ("fr_trace_json", "dump_nccl_trace_json", "ping", "dump_traceback")

SETTLE_SECONDS = 12.0
"""From the beginning of the hang to the question: the power of a GPU is a mean over a second and more."""

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
cpu = sys.argv[1] == "cpu"
rank = int(os.environ["RANK"])
device = "cpu" if cpu else f"cuda:{os.environ['LOCAL_RANK']}"
if not cpu:
    torch.cuda.set_device(device)
dist.init_process_group("gloo" if cpu else "nccl")
weights = torch.ones(1 << 20, device=device)

def load():
    while True:
        time.sleep(0.1)

def spin():
    for _ in range(100):
        torch.cuda._sleep(2_000_000_000)

for step in range(5):
    dist.all_reduce(weights)
    time.sleep(0.1)
weights.sum().item()
open(f"hangs{rank}", "w").close()
if dist.get_world_size() == 1:
    spin()
elif rank == 1:
    load()
dist.all_reduce(weights)
weights.sum().item()
"""


def look(viewer: Connection, host: AgentHost, ranks: int) -> dict[str, Any]:
    """All that there is to see of the run."""
    found = typed.from_json(Evidence, viewer.request("evidence", run="run-1", timeout=60)["evidence"])
    verdict = diagnose(found)
    first = found.ranks[0]
    record = host.attempt_dir("run-1") / "rank0"
    answers = {handler: flight.ask(str(record), handler) for handler in HANDLERS}
    pending = [entry.name for group in first.groups for entry in group.recent if not entry.retired]
    return {
        "ranks": ranks,
        "torch": torch.__version__,
        "nccl": None if not torch.cuda.is_available() else ".".join(map(str, torch.cuda.nccl.version())),
        "verdict": verdict.verdict,
        "culprits": list(verdict.culprits),
        "sentence": verdict.sentence,
        "evidence": [finding.text for finding in verdict.evidence],
        "handlers": {name: None if answer is None else len(answer) for name, answer in answers.items()},
        "recorded": first.recorded,
        "groups": [[group.name, group.enqueued, group.completed] for group in first.groups],
        "pending": pending,
        "stack": [places.spot(frame) for frame in places.main_stack(first)][:8],
        "gil_free": first.gil_free,
        "main_cpu_share": first.main_cpu_share,
        "gpu": None if first.gpu is None else dataclasses.asdict(first.gpu),
        "ras": found.hosts[0].nccl_ras,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="two ranks over gloo")
    cpu = parser.parse_args().cpu
    ranks = 2 if cpu else torch.cuda.device_count()
    with tempfile.TemporaryDirectory(prefix="encamp-gpu-") as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "train.py").write_text(TRAIN)
        host = AgentHost(f"{folder}/home")
        stack.callback(host.close)
        viewer = host.connect()
        spec = {
            **host.spec("run-1", "cpu" if cpu else "cuda", nproc=ranks),
            "target": f"{folder}/train.py",
            "env": {"OMP_NUM_THREADS": "1"},
            "stall_seconds": 5.0,
        }
        viewer.request("launch", spec=spec, actor="test", timeout=120)
        hangs = [Path(folder) / f"hangs{rank}" for rank in range(ranks)]
        wait_until(lambda: all(path.exists() for path in hangs), 120, "the ranks hang")
        time.sleep(SETTLE_SECONDS)  # what is measured is the state in which nothing changes any more
        print(json.dumps(look(viewer, host, ranks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
