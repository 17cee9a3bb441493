"""The child of the log benches: a log on a real terminal, fed at a rate; writes what it measured as JSON.

    python log_app.py RESULT.json WHAT LINES_PER_SECOND SECONDS

WHAT is `pane` (ours, with the app's stylesheet), `log` (textual's Log, fed in the same pieces) or `none` (the
feeding alone, which is not part of what is measured).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TEXTUAL_FPS", "20")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.logs import MemorySource  # noqa: E402
from textual.app import App, ComposeResult  # noqa: E402
from textual.widgets import Log, Static  # noqa: E402

from tui import heap, theme  # noqa: E402
from tui.fleet.log_source import CHUNK_BYTES, LogSink  # noqa: E402
from tui.widgets.log_pane import LogPane  # noqa: E402

TURN = 0.1
"""Seconds between two pieces of output: about what an agent sends."""

LINES = [
    b"12:%02d:%02d step %07d loss 2.9148 tok/s 411 920 lr 3.00e-04 grad 0.912 mem 21.9 G\n"
    % (n // 60 % 60, n % 60, n)
    for n in range(10_000)
]


class RateSource(MemorySource):
    """A rank that prints: what it wrote is not kept, only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.followed = asyncio.Event()

    async def follow(self, offset: int, sink: LogSink) -> None:
        await super().follow(offset, sink)
        self.followed.set()

    def emit(self, data: bytes) -> None:
        """Send `data` in pieces as the wire would carry them."""
        for sink in self.sinks:
            for start in range(0, len(data), CHUNK_BYTES):
                sink.data(self.written + start, data[start : start + CHUNK_BYTES])
        self.written += len(data)


class BenchApp(App[None]):
    CSS_PATH = str(ROOT / "tui" / "encamp.tcss")

    def __init__(self, result: Path, what: str, rate: int, seconds: float) -> None:
        super().__init__()
        self.result, self.what, self.rate, self.seconds = result, what, rate, seconds
        self.source = RateSource()
        self.pieces = [
            b"".join(LINES[start : start + int(rate * TURN)]) for start in range(0, 10_000, int(rate * TURN))
        ]
        self.turns = 0

    def compose(self) -> ComposeResult:
        yield {"pane": LogPane, "log": Log, "none": Static}[self.what]()

    def on_mount(self) -> None:
        self.register_theme(theme.DARK)
        self.theme = theme.DARK.name
        if self.what == "pane":
            self.query_one(LogPane).show_source(self.source)
        self.run_worker(self.measure())

    async def measure(self) -> None:
        await self.source.followed.wait() if self.what == "pane" else None
        await self.feed(1.0)
        heap.settle()  # as the app does
        bursts: list[float] = []
        ticker = asyncio.create_task(self.watch_loop(bursts))
        cpu, wall = time.process_time(), time.monotonic()
        await self.feed(self.seconds)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        ticker.cancel()
        await asyncio.sleep(0.3)
        result = {"cpu_percent": 100 * cpu / wall, "wall": wall, "worst_burst_ms": 1000 * max(bursts)}
        if self.what == "pane":
            pane = self.query_one(LogPane)
            assert pane.feed is not None
            known = pane.feed.window.known
            result |= {
                "window_bytes": known.held,
                "window_end": known.size,
                "written": self.source.written,
                "holes": len(known.missing(known.size - known.held, known.size)),
                "last_line_shown": pane.view.rows[-1].item.end == known.size,
            }
        self.result.write_text(json.dumps(result))
        self.exit()

    async def feed(self, seconds: float) -> None:
        """Print at the rate."""
        start = time.monotonic()
        log = self.query_one(Log) if self.what == "log" else None
        for turn in range(int(seconds / TURN)):
            piece = self.pieces[self.turns % len(self.pieces)]
            self.turns += 1
            if log is None:
                self.source.emit(piece)
            else:
                log.write(piece.decode())
            await asyncio.sleep(max(0.0, start + (turn + 1) * TURN - time.monotonic()))

    async def watch_loop(self, bursts: list[float]) -> None:
        """How long the loop computes at a stretch: what a key press waits for, whatever else runs here."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.002)
            bursts.append(time.thread_time() - before)


if __name__ == "__main__":
    BenchApp(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])).run()
