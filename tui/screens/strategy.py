"""The choice of a strategy in the launch dialog: the list, and what the marked hosts are asked for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.worker import Worker

from profiles.schema import Profile

from .. import formatting as fmt
from ..fleet import interpreters, strategies
from ..fleet.check_facts import Interpreter
from ..fleet.errors import EncampError
from ..fleet.store import Link
from ..widgets.strategy_list import Judge, StrategyField, StrategyList, verdict_words
from ..widgets.table import Table
from .dialog import Dialog, Text

if TYPE_CHECKING:
    from ..app import EncampApp

LOOK_SECONDS = 0.25
"""How often the verdicts are looked at: the hosts' answers come while the list is shown."""


class StrategyScreen(Dialog[str]):
    """Answers with the name that was chosen, `AS_PROFILE` for what the profile says."""

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - as the base class has it

    def __init__(self, hosts: Sequence[str], judge: Judge, chosen: str, profile: str) -> None:
        super().__init__(f"strategy on {fmt.listed(hosts)}" if hosts else "strategy")
        self.list = StrategyList(judge, profile)
        self._chosen = chosen
        self._profile = profile

    def body(self) -> ComposeResult:
        """The list, and what the row under the cursor comes to."""
        yield self.list
        yield Text(id="verdict", classes="paragraph")

    def hint(self) -> str:
        """The way on and the way out."""
        return "j k move · enter choose · esc leave"

    def on_mount(self) -> None:
        """Begin on what is chosen now."""
        self.list.tick()
        self.list.select(self._chosen)
        self.list.focus()
        self.set_interval(LOOK_SECONDS, self._look)
        self._look()

    @on(Table.Moved)
    def _look(self) -> None:
        self.list.tick()
        name = self.list.cursor
        if name is None:
            return
        self.query_one("#verdict", Text).put(verdict_words(name or self._profile, self.list.verdict(name)))

    @on(Table.Opened)
    def _opened(self) -> None:
        self.dismiss(self.list.cursor)


class StrategyChoice(Vertical):
    """The dialog's field for the strategy, with a line on what stands against it where something does."""

    def __init__(self) -> None:
        super().__init__(id="strategy-choice")
        self._hosts: tuple[str, ...] = ()
        self._wanted = strategies.Wanted()
        self._pythons: dict[str, tuple[Interpreter, ...] | None] = {}
        """What hosts have told of their Pythons; None where they do not know."""
        self._named: dict[tuple[str, str], Interpreter | None] = {}
        """Which Pythons of profiles hosts were asked about, and what each is: None while not known."""
        self._asking: set[tuple[str, str]] = set()

    def compose(self) -> ComposeResult:
        """The field with its name, and the line below."""
        with Horizontal(classes="fields"):
            yield Text("strategy", classes="name")
            yield StrategyField(self.judge, id="strategy")
        yield Text(id="verdict", classes="quiet indented")

    @property
    def field(self) -> StrategyField:
        """The field."""
        return self.query_one(StrategyField)

    @property
    def overrides(self) -> list[str]:
        """What is put in place of the profile's strategy: a setting, or nothing."""
        return [f"run.strategy={self.field.value}"] if self.field.value else []

    def on_hosts(self, names: Sequence[str]) -> None:
        """These hosts are marked now; those of which nothing is known are asked."""
        self._hosts = tuple(names)
        python = self._wanted.python
        for name in self._hosts:
            host = self._app.store.hosts.get(name)
            if host is not None and host.link is Link.LIVE and (name, python) not in self._named:
                self._named[name, python] = None
                self._asking.add((name, python))
                self._ask(name, python)
        self._show()

    def of_profile(self, profile: Profile, own: str) -> None:
        """The profile with all that is changed, and the strategy that it would have without this field."""
        self._wanted = strategies.wanted(profile)
        self.field.profile = own
        self.on_hosts(self._hosts)

    def judge(self, name: str) -> strategies.Verdict:
        """Whether the hosts that are marked can run a strategy, as far as is known now."""
        views = [view for host in self._hosts if (view := self._app.store.hosts.get(host)) is not None]
        known = [
            strategies.host_has(
                view, self._of(view.name), asking=(view.name, self._wanted.python) in self._asking
            )
            for view in views
        ]
        return strategies.judge(name, known, self._wanted)

    def _of(self, host: str) -> tuple[Interpreter, ...] | None:
        """The Pythons of a host; the one that the profile names is called as it is there."""
        found, named = self._pythons.get(host), self._named.get((host, self._wanted.python))
        if named is None:
            return found
        return (*(found or ()), dataclasses.replace(named, path=self._wanted.python))

    @property
    def _app(self) -> EncampApp:
        return cast("EncampApp", self.app)

    @work(group="pythons", exit_on_error=False)
    async def _ask(self, name: str, python: str) -> None:
        try:
            means = await interpreters.ask(self._app.fleet.session(name), python)
            self._pythons[name], self._named[name, python] = means.interpreters, means.named
        except EncampError:
            pass  # that is not known, then; what the host says of the launch itself counts
        self._asking.discard((name, python))
        self._show()

    def _show(self) -> None:
        field, said = self.field, self.query_one("#verdict", Text)
        loud = field.effective and field.verdict.state in (strategies.NO, strategies.WARNING)
        said.put(verdict_words(field.effective, field.verdict) if loud else "")
        said.display = bool(loud)
        field.refresh()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """What fails unforeseen is said by the app."""
        self._app.on_worker_state_changed(event)

    @on(StrategyField.Wanted)
    def _list(self, event: StrategyField.Wanted) -> None:
        event.stop()

        def choose(name: str | None) -> None:
            if name is not None:
                self.field.value = name

        screen = StrategyScreen(self._hosts, self.judge, self.field.value, self.field.profile)
        self._app.push_screen(screen, choose)
