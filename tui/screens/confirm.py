"""A question that only a typed word answers: for what cannot be undone."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from .. import formatting as fmt
from .. import run_facts
from ..fleet.store import Link, RunView
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


def restart_question(run: RunView) -> ConfirmScreen:
    """Whether a run is to be stopped, if it lives, and started again."""
    info = run.info
    ranks = f"all {fmt.plural(info.world_size, 'rank')} on {fmt.listed(run.hosts)}"
    what = "stop and start again" if run.live else "start again"
    title = f"restart {info.run}: {ranks} {what} as attempt {info.attempt + 1}"
    return ConfirmScreen(
        title, [*_standing(run), ("same", "command, folder and environment as before")], "restart"
    )


def stop_question(run: RunView) -> ConfirmScreen:
    """Whether a run is to be stopped."""
    info = run.info
    title = f"stop {info.run}: all {fmt.plural(info.world_size, 'rank')} on {fmt.listed(run.hosts)} end"
    facts = [
        *_standing(run),
        ("how", "SIGTERM, the profile's grace, then the whole process tree is killed"),
    ]
    return ConfirmScreen(title, facts, "stop")


def _standing(run: RunView) -> list[tuple[str, str]]:
    info = run.info
    took = fmt.duration(run_facts.elapsed(run))
    step = "" if run.step is None else f" · step {fmt.count(run.step)}"
    facts = [("now", f"attempt {info.attempt} {run.state} · {took}{step}")]
    if run.live:
        facts.append(("lost", "the steps since the last checkpoint; all of them if the script keeps none"))
    for host, _ in run.parts:
        live = host.link is Link.LIVE
        said = f"{host.name} {host.link.value}"
        facts.append(("host", said if live else f"▲ {said}: nothing happens before it answers"))
    return facts
