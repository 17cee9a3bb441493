"""The fleet: a line a host, with its GPUs underneath when it is opened up.

Trouble rises to the top; all other hosts keep the place that the user gave them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Literal, NamedTuple

from textual.binding import Binding, BindingType

from .. import facts as host_facts_of
from .. import formatting as fmt
from ..facts import HostFacts
from ..fleet.store import HostView, Link, NodeView, Store
from . import host_details
from .columns import Cell, Column, line, width_of
from .table import EDGE, Table, matches
from .toned import Piece, length


class Row(NamedTuple):
    """A row of the fleet: a host, or something of a host that is opened up."""

    host: str
    part: Literal["host", "note", "node", "gpu", "cpu", "detail"] = "host"
    number: int = 0
    """Which of several: the index of a GPU, the number of a note."""


ORDERS = ("added", "name", "utilization", "memory", "run")
"""What hosts can be sorted by. Sorting happens when the user asks; after that hosts keep their places."""

COLUMN_ORDERS = {
    "host": "name",
    "util": "utilization",
    "bars": "utilization",
    "memory": "memory",
    "run": "run",
}
"""Which order a click on a column's title asks for."""


CPU_COLUMNS = (
    Column("gpus", "GPUS", 8, keep=4),
    Column("cpu", "CPU", 5, right=True, keep=10),
    Column("cpubar", "", 5, keep=9, widest=8, gap=1),
    Column("ram", "RAM", 10, right=True, keep=8),
)
"""What a fleet without any GPU works with."""


def _device_columns(most_gpus: int) -> tuple[Column, ...]:
    return (
        Column("gpus", "GPUS", 10, keep=9, widest=18),
        Column("util", "UTIL", 5, right=True, keep=10),
        Column("bars", "", max(4, min(16, most_gpus)), keep=8, gap=1),
        Column("memory", "MEMORY", 10, right=True, keep=7),
        Column("power", "POWER", 11, right=True, keep=4),
        Column("hot", "TEMP", 4, right=True, keep=0),
        Column("cpu", "CPU", 5, right=True, keep=6),
        Column("cpubar", "", 4, keep=1, widest=8, gap=1),
        Column("ram", "RAM", 10, right=True, keep=3),
    )


class HostTable(Table[Row]):
    """All hosts of a store."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="fleet.open", tooltip="open the run, or the host's GPUs"),
        Binding(
            "space,right",
            "expand",
            "GPUs",
            id="fleet.expand",
            key_display="space",
            tooltip="show or hide its GPUs",
        ),
        Binding("left", "collapse", "hide GPUs", show=False, id="fleet.collapse"),
        Binding("o", "order", "sort", show=False, id="fleet.order", tooltip="sort by the next column"),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__(id="hosts")
        self.store = store
        self.expanded: set[str] = set()
        self.filter = ""
        self.order = ORDERS[0]
        self._sequence: list[str] = []
        self._facts: dict[str, tuple[HostView, HostFacts]] = {}

    # --- rows --------------------------------------------------------------------------------------------

    def keys(self) -> Sequence[Row]:
        """Hosts in trouble first, the others in their order, each with its parts when opened up."""
        hosts = self.store.hosts
        if len(self._sequence) != len(hosts) or any(name not in hosts for name in self._sequence):
            known = dict.fromkeys(name for name in self._sequence if name in hosts)
            self._sequence = list(known | dict.fromkeys(hosts))
        ranked: tuple[list[str], ...] = ([], [], [])
        for name in self._sequence:
            host = hosts[name]
            facts = self.facts(host)
            if self.filter and not self._matches(host, facts):
                continue
            ranked[host_facts_of.severity(host_facts_of.mark_now(host, facts, self.now))].append(name)
        rows: list[Row] = []
        for group in ranked:
            for name in group:
                rows.append(Row(name))
                if name in self.expanded:
                    rows += self._host_parts(hosts[name])
        return rows

    def facts(self, host: HostView) -> HostFacts:
        """What `host` says, derived once a revision."""
        view, facts = self._facts.get(host.name, (None, None))
        if facts is None or view is not host or facts.revision != host.revision:
            facts = host_facts_of.host_facts(host)
            self._facts[host.name] = (host, facts)
        return facts

    def _host_parts(self, host: HostView) -> list[Row]:
        notes = host_details.notes(host, self.facts(host))
        rows = [Row(host.name, "note", number) for number in range(len(notes))]
        rows += [Row(host.name, "node", number) for number in range(len(host_details.parts_of_runs(host)))]
        if host.sample is not None:
            rows += [Row(host.name, "gpu", gpu.index) for gpu in host.sample.gpu.gpus]
            rows.append(Row(host.name, "cpu"))
        rows.append(Row(host.name, "detail"))
        return rows

    def _matches(self, host: HostView, facts: HostFacts) -> bool:
        model = facts.gpus.model if facts.gpus else "no GPUs"
        return matches(self.filter, (host.name, host.address, facts.mark.word, model, *host.runs))

    # --- looks -------------------------------------------------------------------------------------------

    def columns(self) -> Sequence[Column]:
        """What fits: names, state and utilisation stay to the last."""
        hosts = self.store.hosts.values()
        names = max((len(host.name) for host in hosts), default=4)
        runs = max((_run_length(facts.run) for host in hosts if (facts := self.facts(host)).run), default=3)
        most = max((facts.gpus.number_of for host in hosts if (facts := self.facts(host)).gpus), default=0)
        return [
            Column("mark", "", 1, keep=20, gap=0),
            Column("host", "HOST", max(6, min(12, names)), keep=19, widest=min(32, names), gap=1),
            Column("state", "STATE", 14, keep=18),
            *(_device_columns(most) if most else CPU_COLUMNS),
            Column("run", "RUN", max(8, min(14, runs + 2)), keep=15, widest=min(32, runs + 2)),
            Column("step", "STEP", 8, right=True, keep=2, widest=9),
            Column("history", "LAST MINUTE", 30, keep=-1),
            Column("age", "AGE", 5, right=True, keep=16),
        ]

    def signature(self, key: Row) -> Hashable:
        """Revision and what the time of day changes: the age in seconds, the countdown."""
        host = self.store.hosts.get(key.host)
        if host is None:
            return None
        age = host.age(self.now)
        countdown = None if host.retry_at is None else round(host.retry_at - self.now)
        waiting = None if host.link is Link.LIVE else int(self.now)
        return (
            host.revision,
            None if age is None else -int(-age // 1),
            countdown,
            waiting,
            key.host in self.expanded,
        )

    def pieces(self, key: Row) -> list[Piece]:
        """The row of a host or of a part of it."""
        host = self.store.hosts.get(key.host)
        if host is None:
            return []
        facts = self.facts(host)
        stale = "quiet" if host_facts_of.stale(host, self.now) else None
        if key.part in ("gpu", "cpu"):
            slots = host_details.slots(
                self.size.width, facts.gpus is not None and facts.gpus.model == "mixed"
            )
            if key.part == "gpu":
                return line(slots, host_details.gpu_cells(host, facts, key.number, slots), stale)
            return line(slots, host_details.cpu_cells(host, slots), stale)
        if key.part == "note":
            notes = host_details.notes(host, facts)
            return self._sentence(notes[key.number] if key.number < len(notes) else "", "")
        if key.part == "node":
            nodes = host_details.parts_of_runs(host)
            return self._sentence(nodes[key.number] if key.number < len(nodes) else "", "")
        if key.part == "detail":
            return self._sentence(host_details.detail(host), "quiet")
        return self._host_pieces(host, facts, stale)

    def _sentence(self, text: str, tone: str) -> list[Piece]:
        indent: Piece = ("     ", "")
        return [indent, (fmt.clip(text, self._room([indent])), tone)]

    def _host_pieces(self, host: HostView, facts: HostFacts, stale: str | None) -> list[Piece]:
        mark = host_facts_of.mark_now(host, facts, self.now)
        words = host_facts_of.state_words(host, facts, self.now)
        head: dict[str, Cell] = {
            "mark": (mark.glyph, mark.tone),
            "host": (host.name, "strong"),
            "state": (fmt.choose(words, self._width_of("state")), mark.tone),
        }
        named = [slot for slot in self.slots if slot.column.key in head]
        pieces = line(named, head)
        if host.link is not Link.LIVE or host.sample is None:
            return pieces + self._message(host, facts, self._room(pieces))
        rest = [slot for slot in self.slots if slot.column.key not in head]
        return pieces + line(rest, self._values(host, facts), stale)

    def _message(self, host: HostView, facts: HostFacts, room: int) -> list[Piece]:
        parts, todo = host_facts_of.next_step(host, facts, self.now)
        known = fmt.join_fitting(parts, room - 2 - (len(todo) + 3 if todo else 0))
        joint = " · " if known and todo else ""
        return [("  ", ""), (known + joint, "quiet"), (todo, "")]

    def _values(self, host: HostView, facts: HostFacts) -> dict[str, Cell]:
        sample = host.sample
        assert sample is not None
        cpu = sample.cpu.percent
        cells: dict[str, Cell] = {
            "cpu": fmt.percent(cpu),
            "cpubar": (fmt.bar(None if cpu is None else cpu / 100, self._width_of("cpubar")), "util"),
            "ram": fmt.gib(sample.memory.used_bytes, sample.memory.limit_bytes),
            "run": self._run_cell(facts),
            "step": fmt.NONE,
            "history": (host_details.history(host, self._width_of("history")), "util"),
            "age": fmt.age(host.age(self.now)),
        }
        if facts.run is not None and facts.run.live:
            cells["step"] = fmt.count(facts.run.step)
        gpus = facts.gpus
        behind = host_facts_of.gpu_stale_seconds(host)
        tone = "quiet" if behind is not None else ""
        if gpus is None:
            cells["gpus"] = (facts.gpu_problem, "trouble") if facts.gpu_problem else ("no GPUs", "quiet")
            cells |= dict.fromkeys(("util", "memory", "power", "hot"), (fmt.NONE, "quiet"))
            return cells
        number = gpus.number_of
        model = gpus.model.split()
        words = [f"{number} {' '.join(model[:end])}" for end in range(len(model), 0, -1)]
        cells["gpus"] = (fmt.choose(words, self._width_of("gpus")), tone)
        cells["util"] = (fmt.percent(gpus.utilization), tone)
        cells["bars"] = _bars(gpus.each, self._width_of("bars"), tone)
        cells["memory"] = (fmt.gib(gpus.memory_used, gpus.memory_total), tone)
        cells["power"] = (fmt.kilowatts(gpus.power, gpus.power_limit), tone)
        cells["hot"] = (fmt.UNKNOWN if gpus.hottest is None else f"{gpus.hottest:.0f}°", tone)
        return cells

    def _run_cell(self, facts: HostFacts) -> Cell:
        if facts.run is None or facts.run_mark is None:
            return (fmt.NONE, "quiet")
        more = f" +{facts.live_runs - 1}" if facts.live_runs > 1 else ""
        share = _share_of(facts.run)
        if facts.run.live:
            glyph = "" if facts.run_mark.word == "running" else facts.run_mark.glyph + " "
            return [(glyph, facts.run_mark.tone), (facts.run.id, ""), (share + more, "quiet")]
        tone = facts.run_mark.tone if facts.run_mark.word == "failed" else "quiet"
        return [(facts.run_mark.glyph + " ", tone), (facts.run.id + share, "quiet")]

    def _width_of(self, key: str) -> int:
        return width_of(self.slots, key)

    def _room(self, pieces: list[Piece]) -> int:
        return self.size.width - 2 * EDGE - length(pieces)

    # --- keys --------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a host there is nothing to open or to sort."""
        if action in ("open", "expand", "collapse", "order") and not self.rows:
            return False
        return super().check_action(action, parameters)

    def action_expand(self) -> None:
        """Open up the host under the cursor, or close it."""
        if self.cursor is not None:
            self.expanded ^= {self.cursor.host}
            if self.cursor.host not in self.expanded:
                self.select(Row(self.cursor.host))
            self.tick()

    def action_collapse(self) -> None:
        """Close the host under the cursor."""
        if self.cursor is not None and self.cursor.host in self.expanded:
            self.action_expand()

    def action_order(self) -> None:
        """Sort by the next thing worth sorting by, once."""
        self.sort_by(ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)])

    def sort_by(self, order: str) -> None:
        """Sort the hosts now by one of `ORDERS`; from then on they keep their places again."""
        self.order = order
        names = list(self.store.hosts)
        if order != "added":
            names.sort(key=lambda name: self._sort_key(self.store.hosts[name], order))
        self._sequence = names
        self.tick()

    def _sort_key(self, host: HostView, order: str) -> tuple[float, str]:
        facts = self.facts(host)
        if order == "name":
            return 0.0, host.name
        if order == "run":
            return (0.0, facts.run.id) if facts.run is not None and facts.run.live else (1.0, host.name)
        gpus = facts.gpus
        if gpus is None:
            return 1.0, host.name
        value = gpus.utilization if order == "utilization" else gpus.memory_used
        return -(value or 0.0), host.name


def _share_of(node: NodeView) -> str:
    """`1/2` for the first of two hosts of a run; nothing for a run on one host."""
    nodes = len(node.info.nodes)
    return f" {node.info.node_rank + 1}/{nodes}" if nodes > 1 else ""


def _run_length(node: NodeView | None) -> int:
    return len(node.id + _share_of(node)) if node is not None else 0


def _bars(each: Sequence[float | None], width: int, tone: str) -> Cell:
    """One upright bar a GPU; a GPU that does not say is a question mark."""
    pieces: list[Piece] = []
    for value in fmt.fold(each, width):
        if value is None:
            pieces.append((fmt.UNKNOWN, "unknown"))
        else:
            pieces.append((fmt.level(value), tone or ("quiet" if value < 3 else "util")))
    return _merged(pieces)


def _merged(pieces: list[Piece]) -> list[Piece]:
    merged: list[Piece] = []
    for text, tone in pieces:
        if merged and merged[-1][1] == tone:
            merged[-1] = (merged[-1][0] + text, tone)
        else:
            merged.append((text, tone))
    return merged
