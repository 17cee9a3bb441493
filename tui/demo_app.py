"""The app of the demo: its runs end with it, and another shell needs a line to see its hosts."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from .app import EncampApp
from .ports import FleetPort

NOTICE_SECONDS = 20.0
"""How long it is shown at the start how other commands are run beside it; the help says it always."""


class DemoApp(EncampApp):
    """The cockpit over the demo's hosts. `enter` is the command after which another shell sees them too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+q",
            "quit",
            "quit",
            show=False,
            priority=True,
            id="app.quit",
            tooltip="leave; the demo and its runs end",
        ),
    ]
    LEAVING = "the demo and its runs end"

    def __init__(self, fleet: FleetPort, *, enter: str, **options: Any) -> None:
        super().__init__(fleet, **options)
        self.enter = enter

    def on_mount(self) -> None:
        """Say how to go on in another shell: this one's terminal is taken."""
        self.notify(
            f"Other encamp commands work in another shell, after:\n{self.enter}",
            timeout=NOTICE_SECONDS,
            markup=False,
        )

    def more_help(self) -> list[tuple[str, str]]:
        """The line for another shell."""
        return [(self.enter, "in another shell: then encamp's commands work there on this demo")]
