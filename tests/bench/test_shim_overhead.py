"""Training under the shim and watched by the agent, against bare torchrun: the same script, in short turns.

In every round each of these makes as many steps, in another order each time: the job under encamp, the same
job without the step counter in torch's optimizers, and two jobs started by hand, which tell how much two jobs
differ that are alike. A turn counts by its median step, so that most of what else the machine does in it is
forgotten, and of all rounds the median counts. What the agent does once a second is no part of a median step:
it is taken off as the processor time that it uses, as if all ranks stood still for so long.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from agent_client import AgentHost, Connection
from trainee import RANKS, SCRIPT, Trainee, bare

from agent import process, wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(600)]

TURN = 0.2
"""Seconds that a turn takes, about."""
FEWEST, MOST_SECONDS = 60, 100
"""Rounds, and seconds of them: as many as show on which side of the floor the median is."""
FLOOR = 0.995
FIRST_STEPS = 20


def test_steps_per_second_against_bare_torchrun(agent_host: AgentHost, tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        closing(Trainee(tmp_path / "ours")) as ours,
        bare(tmp_path / "one") as one,
        bare(tmp_path / "other") as other,
    ):
        viewer = agent_host.connect()
        launch(viewer, ours.path)
        end = pool.submit(viewer.expect, wire.Run, lambda run: run.state in wire.END_STATES, 500)
        for job in (ours, one, other):
            job.meet()
        agent = [viewer.hello.pid, agent_host.supervisor("bench") or 0]
        cpu, start = processor_seconds(agent), time.monotonic()
        seconds = rounds(ours, one, other)
        taken = (processor_seconds(agent) - cpu) / (time.monotonic() - start)
        ours.close()
        assert end.result().state == "finished"
    by_hand = [math.sqrt(a * b) for a, b in zip(seconds["one"], seconds["other"], strict=True)]
    counter, shim = ratios(seconds["off"], seconds["on"]), ratios(by_hand, seconds["on"])
    alike = ratios(seconds["one"], seconds["other"])
    print(
        f"\nsteps/s with the step counter / without: {spread(counter)} of {len(counter)} rounds; "
        f"under the shim / bare torchrun: {spread(shim)}; bare torchrun / another one: {spread(alike)}; "
        f"a step takes {1000 * statistics.median(by_hand):.2f} ms; the agent {100 * taken:.2f} % of a core"
    )
    unlike = abs(1 - statistics.median(alike))
    assert not below(counter, FLOOR + taken)
    assert not below(shim, FLOOR + taken - unlike)


def rounds(ours: Trainee, one: Trainee, other: Trainee) -> dict[str, list[float]]:
    """Let them train in turns. Returns the seconds of the median step of each turn."""
    jobs = {"on": ours, "one": one, "off": ours, "other": other}
    names = list(jobs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    steps = FIRST_STEPS
    start = time.monotonic()
    while time.monotonic() - start < MOST_SECONDS:
        for name in names:
            seconds[name].append(jobs[name].train(steps, name))
        steps = max(FIRST_STEPS, round(TURN / statistics.median(seconds["one"])))
        names = [*names[1:], names[0]] if len(seconds["on"]) % 4 else names[::-1]
        counter = ratios(seconds["off"], seconds["on"])
        if len(counter) >= FEWEST and surplus(counter, FLOOR) > 0 and decided(counter, FLOOR):
            break
    return seconds


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def surplus(found: Sequence[float], floor: float) -> int:
    """How many more ratios reach the floor than do not."""
    return sum(1 if ratio >= floor else -1 for ratio in found)


def decided(found: Sequence[float], floor: float) -> bool:
    """Whether more of them lie on one side of the floor than chance explains."""
    return abs(surplus(found, floor)) >= 2.5 * math.sqrt(len(found))


def below(found: Sequence[float], floor: float) -> bool:
    """Whether they are below the floor, and not by chance."""
    return surplus(found, floor) < 0 and decided(found, floor)


def launch(viewer: Connection, path: Path) -> None:
    """Start the script as a run."""
    spec = wire.LaunchSpec(
        "bench", "bench", "bench", "ddp", "script", str(SCRIPT), (str(path),), "", RANKS, sys.executable
    )
    viewer.request("launch", timeout=60, spec=wire.to_json(spec), actor="bench")


def processor_seconds(pids: Sequence[int]) -> float:
    """What these processes have used so far."""
    found = [process.stat(pid) for pid in pids]
    return sum(each.cpu_ticks for each in found if each is not None) / process.TICKS_PER_SECOND


def spread(values: Sequence[float]) -> str:
    """The median, and between what half of them lie."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.4f} (half from {low:.3f} to {high:.3f})"
