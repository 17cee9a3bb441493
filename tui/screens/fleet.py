"""The fleet: every host on a line, and what to do when there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from .. import facts as host_facts_of
from .. import formatting as fmt
from ..fleet.store import HostView
from ..widgets.host_table import COLUMN_ORDERS, HostTable
from ..widgets.lines import Lines
from ..widgets.toned import Piece
from .filtered import FilteredScreen

EMPTY: list[list[Piece]] = [
    [("   There is no host yet. Three ways to add one:", "strong")],
    [],
    [("   1  ", "key"), ("Press a and paste what the provider's page shows, such as", "")],
    [("        ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080", "rate")],
    [],
    [("   2  ", "key"), ("Type it as a command; a name from ~/.ssh/config will do as well", "")],
    [("        :add my-gpu-box", "rate")],
    [],
    [("   3  ", "key"), ("From a shell, for scripts", "")],
    [('        encamp hosts add "ssh -p 20544 root@203.0.113.7" --name vast-a', "rate")],
    [],
    [("   Nothing but SSH is needed there: no root, no Docker, no open port.", "quiet")],
    [
        ("   No machine at hand? ", "quiet"),
        ("encamp demo", "rate"),
        (" makes two of them on this one.", "quiet"),
    ],
]

EMPTY_READ_ONLY: list[list[Piece]] = [
    [("   There is no host yet, and this encamp is read only.", "strong")],
    [("   From a shell:  ", "quiet"), ('encamp hosts add "ssh -p 20544 root@203.0.113.7"', "rate")],
]


class FleetScreen(FilteredScreen):
    """All hosts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "launch", "launch", id="fleet.launch", tooltip="start a run on this host"),
        Binding("a", "add_host", "add host", id="fleet.add", tooltip="add a host by its ssh command"),
        Binding("c", "connect", "connect now", id="fleet.connect", tooltip="connect to this host now"),
        Binding(
            "K", "details", "what is wrong", id="fleet.details", tooltip="this host's trouble and the way out"
        ),
        Binding("p", "check", "pre-flight", id="fleet.check", tooltip="what is in the way of training here"),
        Binding("s", "shell", "shell", id="fleet.shell", tooltip="log in on this host"),
        Binding("l", "logs", "logs", show=False, id="fleet.logs", tooltip="logs of this host's run"),
        Binding("R", "runs", "runs", show=False, id="fleet.runs", tooltip="all runs"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._bound_for: object = None

    def body(self) -> ComposeResult:
        """The table, or what to do about an empty one."""
        yield HostTable(self.store)
        yield Lines(id="empty")

    @property
    def table(self) -> HostTable:
        """The hosts."""
        return self.query_one(HostTable)

    @property
    def filtered(self) -> HostTable:
        """The table."""
        return self.table

    def home(self) -> Widget | None:
        """The table."""
        return self.table

    def keys(self) -> Sequence[str]:
        """What is done most."""
        here = ("open", "expand", "connect", "details", "launch", "check", "shell", "add")
        return [*(f"fleet.{name}" for name in here), "here.filter"]

    def crumbs(self) -> Sequence[str]:
        """The fleet, and the filter in force."""
        return ("fleet",) if not self.table.filter else ("fleet", f"/{self.table.filter}")

    def headline(self) -> list[list[Piece]]:
        """How many of everything; trouble stays longest."""
        hosts = list(self.store.hosts.values())
        table = self.table
        facts = [table.facts(host) for host in hosts]
        gpus = sum(each.gpus.number_of for each in facts if each.gpus is not None)
        runs = sum(run.live for run in self.store.runs())
        troubled = sum(each.mark.tone == fmt.TROUBLE for each in facts)
        parts: list[list[Piece]] = [[(fmt.plural(len(hosts), "host"), "")]] if hosts else []
        if gpus:
            parts.append([(fmt.plural(gpus, "GPU"), "")])
        if runs:
            parts.append([(fmt.plural(runs, "run"), "")])
        if troubled:
            parts.append([(f"{fmt.count(troubled)} in trouble", "trouble")])
        return parts

    def update(self, now: float) -> None:
        """Redraw the hosts that changed."""
        empty = not self.store.hosts
        self.table.display = not empty
        note = self.query_one("#empty", Lines)
        if empty:
            note.show(EMPTY_READ_ONLY if self.encamp.read_only else EMPTY)
        else:
            self.table.tick(now)
            nothing = f"   No host matches /{self.table.filter}. esc shows all of them."
            note.show([] if self.table.rows else [[(nothing, "quiet")]])
        self._refresh_bindings_if_changed()

    # --- the host under the cursor -----------------------------------------------------------------------

    @property
    def host(self) -> HostView | None:
        """The host under the cursor."""
        cursor = self.table.cursor
        return self.store.hosts.get(cursor.host) if cursor is not None else None

    def _refresh_bindings_if_changed(self) -> None:
        """Which keys make sense depends on the host under the cursor."""
        host = self.host
        now = (host.name, host.link, bool(host.runs)) if host is not None else None
        if now != self._bound_for:
            self._bound_for = now
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what the host under the cursor can take."""
        if not super().check_action(action, parameters):
            return False
        host = self.host if self.is_mounted else None
        if action == "connect":
            return host is not None and host_facts_of.can_connect(host)
        if action in ("shell", "check"):
            return host is not None
        if action == "details":
            return host is not None and host_facts_of.has_problem(host)
        if action == "logs":
            return host is not None and bool(host.runs)
        if action in ("filter", "launch"):
            return bool(self.store.hosts)
        return True

    @on(HostTable.Moved)
    def _moved(self) -> None:
        self._refresh_bindings_if_changed()

    @on(HostTable.Opened)
    def _opened(self) -> None:
        row, host = self.table.cursor, self.host
        if row is None or host is None:
            return
        facts = self.table.facts(host)
        if row.part == "gpu" and row.number in facts.ranks_by_gpu:
            run, rank = facts.ranks_by_gpu[row.number]
            self.do(f"run {run} {rank}")
        elif facts.run is not None:
            self.do(f"run {facts.run.id}")
        elif host_facts_of.has_problem(host):
            self.action_details()
        else:
            self.table.action_expand()

    @on(HostTable.HeadClicked)
    def _head_clicked(self, event: HostTable.HeadClicked) -> None:
        order = COLUMN_ORDERS.get(event.column)
        if order:
            self.table.sort_by(order)

    # --- keys --------------------------------------------------------------------------------------------

    def action_launch(self) -> None:
        """Start a run on the host under the cursor."""
        self.encamp.launch("", host=self.host.name if self.host else None)

    def action_add_host(self) -> None:
        """Add a host."""
        self.encamp.add_host("")

    def action_connect(self) -> None:
        """Connect to the host under the cursor now."""
        if self.host is not None:
            self.do(f"connect {self.host.name}")

    def action_check(self) -> None:
        """Check the host under the cursor."""
        if self.host is not None:
            self.do(f"check {self.host.name}")

    def action_shell(self) -> None:
        """Log in on the host under the cursor."""
        if self.host is not None:
            self.do(f"shell {self.host.name}")

    def action_details(self) -> None:
        """Show what is wrong with the host under the cursor, in full."""
        if self.host is not None:
            self.do(f"key {self.host.name}")

    def action_logs(self) -> None:
        """Show the logs of the run of the host under the cursor."""
        facts = self.table.facts(self.host) if self.host is not None else None
        if facts is not None and facts.run is not None:
            self.do(f"logs {facts.run.id}")

    def action_runs(self) -> None:
        """Show all runs."""
        self.encamp.show_runs()
