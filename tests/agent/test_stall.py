"""A real stall under the real torchrun: called by the run's own rhythm, with the rank and the line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_client import AgentHost
from waiting import wait_until

from agent import typed, wire
from agent.diagnosis import Evidence, diagnose

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(300)]
pytest.importorskip("torch")

TRAIN = """
import os, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
lock = threading.Lock()
lock.acquire()
def load(step):
    while step == 8 and rank == 1 and not os.path.exists("go"):
        time.sleep(0.1)
for step in range(1, 20):
    load(step)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    one = AgentHost(str(tmp_path / "home"), sys.executable)
    yield one
    one.close()


def test_a_rank_that_sleeps_is_named_and_the_run_goes_on_when_it_wakes(
    host: AgentHost, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    spec = {**host.spec("run-1"), "target": str(script), "cwd": str(tmp_path), "python": sys.executable}
    viewer = host.connect()
    viewer.request("launch", spec=spec, actor="ann", timeout=120)
    stalled = viewer.until(wire.Run, lambda run: run.state == "stalled", timeout=200)
    assert stalled.reason.startswith("rank 1 ") and " in load (train.py:1" in stalled.reason
    assert " and never called all_reduce of 72 float, number " in stalled.reason
    evidence = typed.from_json(Evidence, viewer.request("evidence", run="run-1")["evidence"])
    found = diagnose(evidence)
    assert (found.verdict, found.culprits) == ("collective-missing", (1,))
    recorded = json.loads((host.attempt_dir("run-1") / "stall-1.json").read_text())
    assert recorded["diagnosis"]["culprits"] == [1]
    (tmp_path / "go").touch()
    viewer.until(wire.Run, lambda run: run.state == "finished", timeout=120)
    events = (host.attempt_dir("run-1") / "events.jsonl").read_text()
    assert '"stalled"' in events
    wait_until(lambda: '"resumed"' in events or '"finished"' in events)
