"""Adds a host by what its provider's page shows, and says while one types what was understood."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from ..fleet.errors import UsageError
from ..fleet.hosts import Host, ParsedTarget, check_name, default_name, parse_ssh_command
from ..widgets.lines import Lines
from ..widgets.toned import Piece
from .dialog import Dialog, Text


class AddHostScreen(Dialog[Host]):
    """Answers with a host that can be added."""

    def __init__(self, text: str = "") -> None:
        super().__init__("add a host")
        self.text = text
        self.target: ParsedTarget | None = None

    def body(self) -> ComposeResult:
        """Two fields, and what was understood."""
        yield Text("ssh command, address, or a name from ~/.ssh/config", classes="label")
        yield Input(self.text, placeholder="ssh -p 20544 root@203.0.113.7", id="command", compact=True)
        yield Lines(id="understood")
        yield Text("name (optional)", classes="label")
        yield Input(id="name", compact=True)

    def hint(self) -> str:
        """The way on and the way out."""
        return "enter add and connect · tab next field · esc leave"

    def on_mount(self) -> None:
        """Understand what is there already."""
        self._understand(self.text)

    @on(Input.Changed, "#command")
    def _changed(self, event: Input.Changed) -> None:
        self._understand(event.value)

    def _understand(self, text: str) -> None:
        self.target = None
        self.complain("")
        name = self.query_one("#name", Input)
        lines: list[list[Piece]] = [[("nothing typed yet", "quiet")]]
        if text.strip():
            try:
                self.target = parse_ssh_command(text)
            except UsageError as error:
                lines = [[(f"? {error.message}", "degraded")]]
                if error.hint:
                    lines.append([(f"  {error.hint}", "quiet")])
            else:
                lines = understood(self.target)
        taken = self.encamp.store.hosts
        name.placeholder = default_name(self.target, taken) if self.target is not None else ""
        self.query_one("#understood", Lines).show(lines)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        text = self.query_one("#command", Input).value
        name = self.query_one("#name", Input).value.strip()
        try:
            target = parse_ssh_command(text)
            name = check_name(name) if name else default_name(target, self.encamp.store.hosts)
        except UsageError as error:
            self.complain(error.message, error.hint)
            return
        if name in self.encamp.store.hosts:
            self.complain(f"There is a host called {name} already.", "Give this one another name.")
            return
        self.dismiss(Host.from_target(name, target))


def understood(target: ParsedTarget) -> list[list[Piece]]:
    """What a text said: the parts that matter, and the ones that do not."""
    parts = [("host", target.hostname)]
    if target.user is not None:
        parts.append(("user", target.user))
    if target.port is not None:
        parts.append(("port", str(target.port)))
    parts += [("key", path) for path in target.identity_files]
    if target.proxy_jump:
        parts.append(("through", target.proxy_jump))
    line: list[Piece] = [("● ", "good")]
    for index, (name, value) in enumerate(parts):
        line += [("   " if index else "", ""), (name + " ", "quiet"), (value, "strong")]
    lines = [line]
    if target.ignored:
        lines.append([(f"  not needed, left out: {' '.join(target.ignored)}", "quiet")])
    return lines
