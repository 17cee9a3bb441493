"""A lab carries what it is for: encamp's sessions, and training across hosts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from waiting import eventually

from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import HostView, Store

from .lab import Lab

pytestmark = pytest.mark.sshd

DDP = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print("rank", dist.get_rank(), "of", dist.get_world_size(), model.module.weight.sum().item(), flush=True)
dist.destroy_process_group()
"""


def two_samples(view: HostView, times: set[float]) -> bool:
    """Whether telemetry of two moments has come; `times` keeps what was seen."""
    if view.sample is not None:
        times.add(view.sample.time)
    return len(times) > 1


async def test_sessions_see_the_telemetry_of_two_hosts(lab: Lab, client_home: Path) -> None:
    hosts = [lab.add(noise="vast", sftp=False), lab.add(nat="gw", shm="16m")]
    store = Store()
    sessions = [Session(host.inventory(), store, NoPrompts(accept_new_host_key=True)) for host in hosts]
    tasks = [asyncio.ensure_future(session.run()) for session in sessions]
    try:
        for session in sessions:
            await session.connected(30)
        for host in hosts:
            view = store.hosts[host.name]
            times: set[float] = set()
            await eventually(partial(two_samples, view, times))
            assert view.hello is not None
            assert (view.hello.hostname, view.hello.boot_id) == (host.name, host.boot_id)
        small = store.hosts["h2"].sample
        assert small is not None
        assert small.shm is not None
        assert small.shm.total_bytes == 16 * 1024**2
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.torch
@pytest.mark.slow
def test_torchrun_trains_on_two_hosts(lab: Lab) -> None:
    hosts = lab.up(2)
    clients = []
    try:
        for number, host in enumerate(hosts):
            (host.home / "ddp.py").write_text(DDP)
            torchrun = (
                f"OMP_NUM_THREADS=1 {sys.executable} -m torch.distributed.run --nnodes 2 --node-rank {number}"
                f" --nproc-per-node 1 --master-addr {hosts[0].address} --master-port 29500 ddp.py"
            )
            clients.append(
                subprocess.Popen([*host.ssh_command(), torchrun], stdout=subprocess.PIPE, text=True)
            )
        said = [client.communicate(timeout=90)[0].split() for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.communicate()
    assert [words[:4] for words in said] == [["rank", "0", "of", "2"], ["rank", "1", "of", "2"]]
    assert said[0][4] == said[1][4], "the ranks trained apart"
