"""Where a rank is: its Python stack, or the traceback that it ended with, the user's own code bright."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from agent.diagnosis.evidence import Frame, Rank

from .. import diagnosis_facts
from .. import formatting as fmt
from ..fleet import tracebacks
from ..fleet.diagnosis import Report
from ..fleet.sanitize import printable
from .lines import Lines
from .scrolled_lines import ScrolledLines
from .toned import Piece, cells

OWN, OTHER = "▸ ", "  "
"""Before a frame of the user's own code, and before one of a library."""

MAX_FRAMES = 200
"""Of one stack."""

MAX_THREADS = 16
"""Other threads and child processes of a rank that are shown."""


class StackView(Vertical):
    """Shows one rank of a report: a title, and below it the stacks, innermost frame first."""

    DEFAULT_CSS = """
    StackView { height: 1fr; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: object = None

    def compose(self) -> ComposeResult:
        """Title and stack."""
        yield Lines(id="stack-title")
        yield ScrolledLines()

    @property
    def body(self) -> ScrolledLines:
        """What scrolls."""
        return self.query_one(ScrolledLines)

    @property
    def text(self) -> str:
        """What is shown, without tones."""
        return self.query_one("#stack-title", Lines).text + "\n" + self.body.text

    def show(self, report: Report | None, number: int) -> None:
        """Show a rank of `report`; the same report and rank again are free."""
        width = self.body.scrollable_content_region.width
        shown = (None if report is None else report.evidence.time, number, width)
        if shown == self._shown:
            return
        moved = self._shown is None or shown[1] != self._shown[1]  # type: ignore[index]
        self._shown = shown
        rank = None
        if report is not None:
            rank = next((rank for rank in report.evidence.ranks if rank.rank == number), None)
        what = "traceback" if rank is not None and rank.traceback else "stack"
        name = f" rank {number} {what} " if number >= 0 else " launcher "
        rule = "─" * max(0, self.size.width - len(name) - 1)
        self.query_one("#stack-title", Lines).show([[(name, "strong"), (rule, "quiet")]])
        self.body.show(lines(report, rank, width))
        if moved:
            self.body.scroll_home(animate=False)


def lines(report: Report | None, rank: Rank | None, width: int) -> list[list[Piece]]:
    """All that is said of where `rank` is, in lines of `width` cells."""
    if report is None or rank is None:
        return [[(" Only ranks have stacks; its log says what it did.", "quiet")]] if report else []
    shown: list[list[Piece]] = []
    words = diagnosis_facts.rank_words(rank)
    if words:
        shown += [[(f" {text}", "quiet")] for text in textwrap.wrap(words, max(20, width - 2))]
    if rank.traceback or rank.state in ("exited", "lost"):
        return [*shown, *_end(report, rank, width)]
    main = [thread for thread in rank.threads if thread.main]
    others = [t for t in rank.threads if not t.main and any(frame.user_code for frame in t.frames)]
    if not any(thread.frames for thread in main):
        why = (
            "A stopped process cannot tell." if rank.process_state == "T" else "No stack could be had of it."
        )
        shown.append([(f" {why}", "quiet")])
    for thread in main:
        shown += _frames(thread.frames, width)
    for thread in others[:MAX_THREADS]:
        shown += [[], [(f" thread {thread.name or 'without a name'}", "head")]]
        shown += _frames(thread.frames, width)
    for child in [child for child in rank.children if child.frames][:MAX_THREADS]:
        state = fmt.PROCESS_WORDS.get(child.state, child.state)
        shown += [[], [(f" child process {child.pid} {child.name} · {state}", "head")]]
        shown += _frames(child.frames, width)
    return shown


def _frames(frames: Sequence[Frame], width: int) -> Iterator[list[Piece]]:
    """A line a frame: file and line, function, and of the user's own code the source."""
    frames = _told(frames)
    kept = frames[:MAX_FRAMES]
    if not kept:
        return
    files = [printable(diagnosis_facts.file_words(frame)) for frame in kept]
    functions = [printable(frame.function) for frame in kept]
    room = max(20, width - 3)
    own = [index for index, frame in enumerate(kept) if frame.user_code] or range(len(kept))
    longest = max(map(cells, files), default=0)
    first = min(longest, max(room * 2 // 5, min(room // 2, max(cells(files[index]) for index in own))))
    second = min(max(cells(functions[index]) for index in own), room // 3)
    for frame, file, function in zip(kept, files, functions, strict=True):
        tone = "strong" if frame.user_code else "quiet"
        name = fmt.pad(function, second) if frame.user_code else function
        row: list[Piece] = [
            (f" {OWN if frame.user_code else OTHER}", "mark"),
            (fmt.pad(_cut_left(file, first), first), tone),
        ]
        row.append((f"  {name}", tone))
        if frame.user_code and frame.source:
            row.append((f"  {frame.source}", ""))
        yield row
    if len(frames) > MAX_FRAMES:
        yield [(f"   and {len(frames) - MAX_FRAMES} more", "quiet")]


def _told(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames without those of launchers at the outer end, which say the same in every job."""
    outer = len(frames)
    while outer and tracebacks.BOILERPLATE.search(frames[outer - 1].file):
        outer -= 1
    return frames[:outer] or frames


def _cut_left(text: str, width: int) -> str:
    """The end of a path: what tells it apart is there."""
    return text if cells(text) <= width else "…" + text[-max(1, width - 1) :]


def _end(report: Report, rank: Rank, width: int) -> Iterator[list[Piece]]:
    """How a rank ended: its traceback, whose others are the same, and whether it is a consequence."""
    if report.consequence(rank):
        yield [(" a consequence: it ended because another rank had", "quiet")]
    for failure in tracebacks.folded(report.failed):
        if rank not in failure.ranks or not rank.traceback:
            continue
        for line in tracebacks.lines(rank.traceback):
            tone = {True: "strong", False: "quiet", None: ""}[line.user_code]
            mark = OWN if line.user_code else OTHER
            for text in textwrap.wrap(printable(line.text), max(20, width - 4), drop_whitespace=False):
                yield [(f" {mark}", "mark"), (text, tone)]
                mark = OTHER
        others = [str(other.rank) for other in failure.ranks if other is not rank]
        if others:
            yield [(f"   the same on rank {fmt.listed(others, 8)}", "quiet")]
        return
    said = f"{rank.error_type}: {rank.error_message}".strip(": ")
    for text in textwrap.wrap(printable(said), max(20, width - 4)):
        yield [("   ", ""), (text, "")]
    if not said and rank.exit_code != 0:
        yield [("   It left no traceback: its log has its last words.", "quiet")]
