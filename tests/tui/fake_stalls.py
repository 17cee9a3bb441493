"""What the agents of fake hosts say of ranks that hang, fail or do well, and runs in these states."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from feed import FakeHost, Feed, cpu_demo, small, two_by_four

from agent import wire
from agent.diagnosis import diagnose
from agent.diagnosis.evidence import Collective, Evidence, Frame, Gpu, Group, Host, Rank, Thread

PACKAGES = "/opt/conda/lib/python3.11/site-packages"
REDUCE = (
    Frame(f"{PACKAGES}/torch/distributed/distributed_c10d.py", 3252, "all_reduce", False),
    Frame(f"{PACKAGES}/torch/distributed/c10d_logger.py", 81, "wrapper", False),
    Frame("/root/work/train.py", 231, "average", True, "dist.all_reduce(loss)"),
    Frame("/root/work/train.py", 203, "<module>", True, "loss = average(step(batch))"),
    Frame("/root/.encamp/runs/gpt/attempts/1/rank.py", 412, "main", False, "runpy.run_path(path)"),
)
READ = (
    Frame("/root/work/data/tokens.py", 88, "read_shard", True, "self.file.readinto(self.buffer)"),
    Frame("/root/work/data/tokens.py", 41, "__next__", True, "self.read_shard()"),
    Frame("/root/work/train.py", 201, "<module>", True, "for batch in data:"),
    Frame("<frozen runpy>", 88, "_run_code", False),
    Frame("/root/.encamp/runs/gpt/attempts/1/rank.py", 412, "main", False, "runpy.run_path(path)"),
)
TRACEBACK = f"""Traceback (most recent call last):
  File "/root/.encamp/runs/gpt/attempts/1/rank.py", line 412, in main
    runpy.run_path(path, run_name="__main__")
  File "<frozen runpy>", line 291, in run_path
  File "/root/work/train.py", line 203, in <module>
    loss = model(batch).loss
  File "{PACKAGES}/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
  File "/root/work/model.py", line 61, in forward
    scores = q @ k.transpose(-2, -1)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def rank(host: FakeHost, number: int, **changes: object) -> Rank:
    """A rank that waits for others in a collective."""
    called = Collective(8412, "nccl:all_reduce", "10x20 float", time.time() - 42, False)
    done = Collective(8411, "nccl:all_reduce", "10x20 float", time.time() - 43, True)
    gpu = Gpu(number % max(1, host.gpus), "ok", 100.0, 121.0, 450.0) if host.gpus else None
    found = Rank(
        number,
        "",
        "running",
        pid=48_000 + number,
        process_state="R",
        cpu_share=1.0,
        main_cpu_share=1.0,
        step=241,
        step_age=42.0,
        step_seconds=0.41,
        phase="train",
        threads=(Thread("MainThread", True, REDUCE),),
        groups=(Group("0", "default_pg", (), 8412, 8411, (done, called)),),
        recorded=True,
        gpu=gpu,
    )
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def elsewhere(host: FakeHost, number: int) -> Rank:
    """A rank that has not called the collective: it reads a file."""
    group = rank(host, number).groups[0]
    return rank(
        host,
        number,
        process_state="D",
        wait_channel="nfs_wait_bit_killable",
        cpu_share=0.0,
        main_cpu_share=0.0,
        io_bytes=0,
        threads=(Thread("MainThread", True, READ),),
        earlier=READ,
        groups=(dataclasses.replace(group, enqueued=8411, recent=group.recent[:1]),),
    )


def evidence(info: wire.Run, ranks: tuple[Rank, ...]) -> Evidence:
    """What one host has to say of its part of a run."""
    return Evidence(info.run, info.attempt, time.time(), info.world_size, 1.0, ranks, (Host("", True),), 4.0)


def own(info: wire.Run) -> range:
    """The ranks that a host has of a run."""
    first = info.node_rank * info.nproc_per_node
    return range(first, first + info.nproc_per_node)


def healthy(host: FakeHost, info: wire.Run) -> Evidence:
    """All ranks have just made a step."""
    return evidence(info, tuple(rank(host, number, step_age=0.2) for number in own(info)))


def hang(feed: Feed, run: str, culprit: int) -> None:
    """From now on one rank of a run does something else than all others."""

    def looked(host: FakeHost, info: wire.Run) -> Evidence:
        found = (elsewhere(host, number) if number == culprit else rank(host, number) for number in own(info))
        return evidence(info, tuple(found))

    feed.evidence[run] = looked
    for host in feed.hosts.values():
        info = host.runs.get(run)
        if info is None:
            continue
        mine = culprit in own(info)
        who = f"rank {culprit}" if mine else "all ranks"
        what = (
            "is stuck in the kernel, in nfs_wait_bit_killable" if mine else "wait in number 8412, all_reduce"
        )
        feed.change_run(host.name, run, state="stalled", reason=f"{who} {what}")
        feed.happened(host.name, run, "stalled", "encamp", f"kernel-wait: {who} {what}", ago=42)


def stalled() -> Feed:
    """Eight ranks on GPUs, one of which hangs."""
    feed = small()
    hang(feed, "gpt-0412", 3)
    return feed


def frozen() -> Feed:
    """Eight ranks, of which a signal has stopped one."""
    feed = small()
    asleep = {"process_state": "T", "cpu_share": 0.0, "main_cpu_share": 0.0}

    def looked(host: FakeHost, info: wire.Run) -> Evidence:
        return evidence(info, tuple(rank(host, each, **(asleep if each == 3 else {})) for each in own(info)))

    feed.evidence["gpt-0412"] = looked
    feed.change_run("vast-a", "gpt-0412", state="stalled", reason="rank 3 is stopped by a signal (SIGSTOP)")
    found = feed.store.find_run("gpt-0412")
    assert found is not None
    found.ranks[3].sample = dataclasses.replace(found.ranks[3].sample, process_state="T")
    return feed


def stalled_demo() -> Feed:
    """Two ranks without GPUs, one of which hangs."""
    feed = cpu_demo()
    hang(feed, "gpt-0412", 1)
    return feed


def stalled_group() -> Feed:
    """Four ranks on each of two hosts, one on the second hangs; with a past to tell of."""
    feed = two_by_four()
    for host in ("vast-a", "vast-b"):
        feed.happened(host, "gpt-0412", "launched", "maria@laptop", "4 ranks with torchrun", ago=3900)
        feed.happened(host, "gpt-0412", "stop", "maria@laptop", "with 10 s grace", ago=1900)
        feed.happened(host, "gpt-0412", "stopped", "", "", ago=1893)
    feed.happened(
        "vast-b",
        "gpt-0412",
        "stalled",
        "encamp",
        "stopped: rank 6 is stopped by a signal (SIGSTOP)",
        ago=2900,
    )
    feed.happened("vast-b", "gpt-0412", "resumed", "encamp", "it goes on", ago=2812)
    for host in ("vast-a", "vast-b"):
        feed.change_run(host, "gpt-0412", attempt=2)
        text = "attempt 2 follows attempt 1"
        feed.happened(host, "gpt-0412", "restarted", "maria@laptop", text, ago=1880)
    feed.advance(40)
    hang(feed, "gpt-0412", 6)
    return feed


def crashed() -> Feed:
    """A rank ran out of memory, and the others lost it."""
    feed = small()
    lost = {"exit_code": 1, "error_type": "DistNetworkError", "error_message": "Connection closed by peer"}

    def looked(host: FakeHost, info: wire.Run) -> Evidence:
        now = time.time()
        gone = {"state": "exited", "process_state": "", "pid": None, "threads": (), "groups": ()}
        first = {
            "exit_code": 1,
            "error_type": "torch.OutOfMemoryError",
            "error_message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
            "traceback": TRACEBACK,
        }
        found = []
        for number in own(info):
            more = first if number == 3 else lost if number % 2 else {"exit_code": -15}
            found.append(rank(host, number, ended=now - 12 + (number != 3), **gone, **more))
        return evidence(info, tuple(found))

    feed.evidence["gpt-0412"] = looked
    reason = "rank 3 (GPU 3) ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory."
    codes = {number: 1 if number % 2 else -15 for number in range(8)}
    feed.end_run("vast-a", "gpt-0412", "failed", codes, reason=reason, exit_code=1)
    return feed


def remembered(feed: Feed, folder: Path) -> None:
    """Give the hosts of `stalled_group` the files of its stalls: one in each of its attempts."""
    for number, name in enumerate(("vast-a", "vast-b")):
        host = feed.hosts[name]
        info = host.runs["gpt-0412"]
        for attempt in (1, 2):
            attempt_info = dataclasses.replace(info, attempt=attempt)
            there = folder / "runs-of" / name / "attempts" / str(attempt)
            there.mkdir(parents=True)
            placement = wire.Placement(info.nodes, number, "10.0.0.1", 29500, info.nodes[0].name)
            resolved = {"nproc_per_node": info.nproc_per_node, "world_size": info.world_size}
            spec = {"resolved": resolved, "placement": wire.to_json(placement)}
            (there / "spec.json").write_text(json.dumps(spec))
            if attempt == 1:
                asleep = {"process_state": "T", "cpu_share": 0.0, "main_cpu_share": 0.0}
                ranks = (rank(host, each, **(asleep if each == 6 else {})) for each in own(info))
                found = evidence(attempt_info, tuple(ranks))
            else:
                found = feed.evidence["gpt-0412"](host, attempt_info)
            kept = {"evidence": wire.to_json(found), "diagnosis": wire.to_json(diagnose(found))}
            if attempt == 2 or name == "vast-b":
                (there / "stall-1.json").write_text(json.dumps(kept))
