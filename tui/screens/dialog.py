"""What all dialogs share: a frame over the screen below, a title, a line for what is wrong, esc to leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label
from textual.worker import Worker

from .. import formatting as fmt
from ..fleet.sanitize import printable

if TYPE_CHECKING:
    from ..app import EncampApp

Result = TypeVar("Result")


class Text(Label):
    """Wrapped text that is shown as it is: no markup, and nothing that a terminal would act on."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(_shown(text), id=id, classes=classes, markup=False)

    def put(self, text: str) -> None:
        """Show another text."""
        self.update(_shown(text))


def _shown(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


class Fact(Horizontal):
    """A name and what is so, which may take several lines."""

    def __init__(self, name: str, text: str, *, classes: str = "") -> None:
        super().__init__(Text(name, classes="name"), Text(text, classes=f"value {classes}"), classes="fact")


class Dialog(ModalScreen[Result | None]):
    """A question over the screen. Leaving it with esc answers None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "leave", "leave", show=False, id="dialog.leave", tooltip="leave without doing anything"
        ),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    @property
    def encamp(self) -> EncampApp:
        """The app, with what it offers to screens."""
        return cast("EncampApp", self.app)

    def body(self) -> ComposeResult:
        """The widgets between the title and the line for errors."""
        raise NotImplementedError

    def hint(self) -> str:
        """The last line: which keys do what."""
        return "esc leave"

    def compose(self) -> ComposeResult:
        """The frame and what is in it."""
        with VerticalScroll(id="dialog", can_focus=False):
            yield Text(self._title, classes="title")
            yield from self.body()
            yield Text(id="error")
            yield Text(self.hint(), id="hint")

    def complain(self, message: str, hint: str = "") -> None:
        """Say what is wrong; an empty message takes it back."""
        error = self.query_one("#error", Text)
        text = f"{message}\n{hint}".strip() if "\n" in message else fmt.sentences(message, hint)
        error.put(f"✕ {text}" if message else "")
        error.display = bool(message)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """What fails unforeseen is said by the app."""
        self.encamp.on_worker_state_changed(event)

    def action_leave(self) -> None:
        """Answer None."""
        self.dismiss(None)
