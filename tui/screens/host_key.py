"""Questions and trouble about who a host is: a key never seen before, a key that changed, a login refused."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input

from .. import formatting as fmt
from ..fleet.hosts import Host
from ..fleet.store import HostView
from .dialog import Dialog, Fact, Text


class HostKeyScreen(Dialog[bool]):
    """Whether the key of a host never seen before is the right one."""

    def __init__(self, host: Host, key_type: str, fingerprint: str) -> None:
        super().__init__(f"new host key of {host.name}")
        self.host = host
        self.key_type = key_type
        self.fingerprint = fingerprint

    def body(self) -> ComposeResult:
        """Host, fingerprint, and a field that wants `yes`."""
        yield Fact("address", self.host.address)
        yield Fact("key", self.key_type)
        yield Fact("fingerprint", self.fingerprint, classes="strong")
        yield Text(
            "encamp has never seen this host. Compare the fingerprint with what its provider shows, if it"
            " shows one. The key is remembered, and another one is refused from then on.",
            classes="paragraph",
        )
        yield Input(placeholder="yes or no", compact=True, classes="apart")
        with Horizontal(classes="buttons"):
            yield Button("accept", id="accept", variant="primary", compact=True)
            yield Button("refuse", id="refuse", compact=True)

    def hint(self) -> str:
        """The way on and the way out."""
        return "type yes and press enter to connect · esc refuses"

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        answer = event.value.strip().lower()
        if answer in ("y", "yes"):
            self.dismiss(True)
        elif answer in ("n", "no"):
            self.dismiss(False)
        else:
            self.complain("Please type yes or no.")

    @on(Button.Pressed, "#accept")
    def _accept(self) -> None:
        self.dismiss(True)

    @on(Button.Pressed, "#refuse")
    def _refuse(self) -> None:
        self.dismiss(False)


class HostProblemScreen(Dialog[bool]):
    """What is wrong with a host in full, and the way out. Answers True when it is to be tried again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "again", "try again", id="problem.again", tooltip="connect to this host now"),
    ]

    def __init__(self, host: HostView) -> None:
        super().__init__(f"{host.name}: {host.link.value}")
        self.host = host

    def body(self) -> ComposeResult:
        """The message, the hint, and what can be done."""
        host = self.host
        yield Fact("address", host.address)
        yield Fact("since", fmt.clock(host.since))
        for sentence in (host.message or "Nothing is wrong with it.", host.hint):
            if sentence:
                yield Text(sentence, classes="paragraph")

    def hint(self) -> str:
        """The way on and the way out."""
        return "c try again · esc leave"

    def action_again(self) -> None:
        """Try again."""
        self.dismiss(True)
