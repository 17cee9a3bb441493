"""Runs the app on a simulated fleet for a while and writes what it cost: the process that the bench measures.

    python fleet_app.py OUT.json HOSTS GPUS SECONDS table|peer

`table` is the app; `peer` is Textual's DataTable, shown the same numbers as often. The messages are made
beforehand: applying them to the store counts, inventing them does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("TEXTUAL_FPS", "20")
sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from fake_fleet import FakeFleet
from feed import Feed, large, ranks, sample
from textual.app import App, ComposeResult
from textual.screen import Screen
from textual.widgets import DataTable

from tui import facts, formatting
from tui.app import EncampApp

FRAMES: list[float] = []


def time_frames() -> None:
    """Note what each repaint takes of the processor, not of the clock: the machine is busy."""
    original = Screen._on_timer_update

    def timed(screen: Screen[Any]) -> None:
        dirty = bool(screen._dirty_widgets or screen._repaint_required or screen._layout_required)
        start = time.thread_time()
        original(screen)
        if dirty:
            FRAMES.append(time.thread_time() - start)

    Screen._on_timer_update = timed  # type: ignore[method-assign]


class Peer(App[None]):
    """The fleet in a DataTable, its cells updated once a second."""

    COLUMNS = ("host", "state", "gpus", "util", "memory", "power", "cpu", "ram", "run", "step", "age")

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.feed = feed

    def compose(self) -> ComposeResult:
        yield DataTable()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for column in self.COLUMNS:
            table.add_column(column, key=column, width=14)
        for name in self.feed.hosts:
            table.add_row(*("" for _ in self.COLUMNS), key=name)
        self.set_interval(1.0, self.show)

    def show(self) -> None:
        table = self.query_one(DataTable)
        for host in self.feed.store.hosts.values():
            said = facts.host_facts(host)
            assert host.sample is not None and said.gpus is not None
            values = (
                host.name,
                said.mark.word,
                said.gpus.model,
                formatting.percent(said.gpus.utilization),
                formatting.gib(said.gpus.memory_used, said.gpus.memory_total),
                formatting.kilowatts(said.gpus.power, said.gpus.power_limit),
                formatting.percent(host.sample.cpu.percent),
                formatting.gib(host.sample.memory.used_bytes),
                said.run.id if said.run else "",
                formatting.count(said.run.step if said.run else None),
                formatting.age(host.age()),
            )
            for column, value in zip(self.COLUMNS, values, strict=True):
                table.update_cell(host.name, column, value)


def hash_of(name: str) -> int:
    return zlib.crc32(name.encode())


async def measure(app: App[None], feed: Feed, seconds: int) -> dict[str, float]:
    # Hosts report one after the other in an order of their own, so those on the screen change all the time.
    names = sorted(feed.hosts, key=hash_of)
    script = []
    for _ in range(seconds + 2):
        feed.tick += 1
        for name in names:
            host = feed.hosts[name]
            messages = [sample(host, feed.tick, feed.time)]
            messages += [ranks(host, info, feed.tick, feed.time) for info in host.runs.values()]  # type: ignore[misc]
            script.append((name, messages))
    result: dict[str, float] = {}

    async def pump() -> None:
        await asyncio.sleep(1.5)
        FRAMES.clear()
        start, cpu = time.monotonic(), time.process_time()
        for index, (name, messages) in enumerate(script[: seconds * len(names)]):
            due = start + index / len(names)
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            for message in messages:
                feed.store.apply(name, message)
        wall = time.monotonic() - start
        result["cpu_share"] = (time.process_time() - cpu) / wall
        frames = sorted(FRAMES) or [0.0]
        result["frames_per_second"] = len(FRAMES) / wall
        result["frame_median"] = frames[len(frames) // 2]
        result["frame_p99"] = frames[int(len(frames) * 0.99)]
        result["frame_longest"] = frames[-1]
        app.exit()

    task = asyncio.create_task(pump())
    await app.run_async()
    await task
    return result


def main() -> None:
    out, hosts, gpus, seconds, what = sys.argv[1:]
    time_frames()
    feed = large(int(hosts), gpus=int(gpus))
    fleet = FakeFleet(Feed(feed.store), Path(tempfile.mkdtemp()))
    app: App[None] = Peer(feed) if what == "peer" else EncampApp(fleet)  # type: ignore[arg-type]
    result = asyncio.run(measure(app, feed, int(seconds)))
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
