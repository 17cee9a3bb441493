"""Several ranks in one group without a launcher: each is a process that calls the function a test gives.

The processes are forked from one that has loaded torch already, so a group takes a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

DEADLINE = 60
"""Seconds for all of them, unless told otherwise."""


def together(count: int, function: Callable[..., Any], *values: Any, deadline: float = DEADLINE) -> list[Any]:
    """Call `function(rank, *values)` on that many ranks, and return what each returned.

    `function` is one of a module's own, and has `deadline` seconds. Fails with the traceback of the first
    rank that raises.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.run", "trainer.strategies.tp", "torch._dynamo"])
    results: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ends: dict[Any, int] = {}
        processes = []
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            ends[ours] = rank
            words = (rank, count, f"{folder}/store", theirs, function, values)
            processes.append(context.Process(target=_rank, args=words))
            processes[-1].start()
            theirs.close()
        end_of_time = time.monotonic() + deadline
        try:
            while ends:
                ready = wait(list(ends), max(end_of_time - time.monotonic(), 0))
                assert ready, f"ranks {sorted(ends.values())} did not come to an end in {deadline} s"
                for end in ready:
                    rank = ends.pop(end)
                    good, results[rank] = end.recv()  # type: ignore[union-attr]
                    assert good, f"rank {rank}:\n{results[rank]}"
        finally:
            for process in processes:
                if ends:
                    process.kill()
                process.join()
    return [results[rank] for rank in range(count)]


def _rank(
    rank: int, count: int, path: str, end: Connection, function: Callable[..., Any], values: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.FileStore(path, count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        result = function(rank, *values)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        end.send((False, traceback.format_exc()))
        raise
    end.send((True, result))
