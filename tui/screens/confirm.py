"""A question that only a typed word answers: for what cannot be undone."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from .. import formatting as fmt
from .. import run_facts
from ..fleet.store import HostView, Link, RunView
from .dialog import Dialog, Fact


class ConfirmScreen(Dialog[bool]):
    """Says what will happen, in rows of a name and a fact, and wants `word` typed."""

    def __init__(self, title: str, facts: Sequence[tuple[str, str]], word: str) -> None:
        super().__init__(title)
        self.facts = facts
        self.word = word

    def body(self) -> ComposeResult:
        """The facts and the field."""
        for name, text in self.facts:
            yield Fact(name, text)
        yield Input(placeholder=f"type {self.word}", compact=True, classes="apart")

    def hint(self) -> str:
        """The way on and the way out."""
        return f"type {self.word} and press enter to go on · esc leaves it as it is"

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip().lower() == self.word:
            self.dismiss(True)
        else:
            self.complain(f"Nothing was done: that is not the word {self.word}.")


def stop_question(run: RunView) -> ConfirmScreen:
    """Whether a run is to be stopped, ranks of an older attempt included."""
    hosts = dict.fromkeys([*run.hosts, *run.leftovers])
    title = f"stop {run.id}: all {fmt.plural(run.info.world_size, 'rank')} on {fmt.listed(list(hosts))} end"
    facts = [*standing(run), ("how", "SIGTERM, the profile's grace, then the whole process tree is killed")]
    return ConfirmScreen(title, facts, "stop")


def now(run: RunView) -> str:
    """State, age and step of the newest attempt, and for how long a stalled one has made no step."""
    took, quiet = fmt.duration(run_facts.elapsed(run)), run_facts.quiet_seconds(run)
    said = [f"attempt {run.attempt} {run.state}", f"started {took} ago" if run.live else f"ran for {took}"]
    if run.step is not None:
        said.append(f"step {fmt.count(run.step)}")
    if run.state == "stalled" and quiet is not None:
        said.append(f"no step for {fmt.duration(quiet)}")
    return " · ".join(said)


def standing(run: RunView) -> list[tuple[str, str]]:
    """How a run and its hosts are now, and what ending it costs."""
    facts = [("now", now(run))]
    if run.live:
        facts.append(("lost", "the steps since the last checkpoint; all of them if the script keeps none"))
    for host, node in (*run.parts, *run.older):
        if node.info.attempt == run.attempt:
            facts.append(("host", _host(host)))
        elif node.live:
            facts.append(("host", f"{_host(host)} · attempt {node.info.attempt} still lives there"))
    for named, view in run.absent:
        if view is None:
            facts.append(("host", f"▲ {named.name} is not among your hosts: nothing happens there"))
        elif view not in [host for host, _ in run.older]:
            facts.append(("host", _host(view)))
    return facts


def _host(host: HostView) -> str:
    if host.link is Link.LIVE:
        return f"{host.name} live"
    return f"▲ {host.name} {host.link.value}: it cannot take part now"
