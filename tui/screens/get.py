"""Fetches files of a run: which, and to where. It goes on when the dialog is left, and can be stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, Input, OptionList
from textual.widgets.option_list import Option

from .. import formatting as fmt
from .. import transfers
from ..actions import Action
from ..fleet.download import Download
from ..fleet.errors import EncampError, UsageError
from ..fleet.host_files import clean_path
from ..fleet.parallel import Progress
from ..fleet.run_files import Entry, RunFiles
from ..fleet.sanitize import printable
from ..widgets.lines import Lines
from .dialog import Dialog, Text
from .going import stage_lines

LOOK_SECONDS = 0.2
"""How often the progress is drawn."""

FIRST = "checkpoints/"
"""The folder that is shown first: what people want back in most cases."""

MOST_SHOWN = 500
"""Entries of a folder in the list; more typing finds the others."""


class GetScreen(Dialog[None]):
    """`files` are those of the run."""

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - as the base class has it

    @dataclass
    class Listed(Message):
        """What is in a folder, or why that is not known."""

        folder: str
        entries: Sequence[Entry]
        error: EncampError | None

    def __init__(self, files: RunFiles, path: str = "") -> None:
        super().__init__(f"get files of {files.run}")
        self.files = files
        self._path = path or FIRST
        self._folder: str | None = None
        """The folder whose entries are listed, or asked for."""
        self._entries: Sequence[Entry] = ()
        self._action: Action | None = None
        self._watching: Timer | None = None

    def body(self) -> ComposeResult:
        """What, to where, and how far it is."""
        with Horizontal(classes="fields"):
            yield Text("path", classes="name")
            yield Input(
                value=self._path,
                placeholder="in the run's folder",
                id="path",
                compact=True,
                select_on_focus=False,
            )
        yield OptionList(id="entries", compact=True)
        yield Text(id="said", classes="quiet indented")
        with Horizontal(classes="fields"):
            yield Text("to", classes="name")
            yield Input(value=".", placeholder="a folder here, or a new name", id="dest", compact=True)
        yield Lines(id="stages")
        with Horizontal(classes="buttons"):
            yield Button("get", id="get", variant="primary", compact=True)
            yield Button("leave", id="leave", compact=True)

    def hint(self) -> str:
        """The way on and the way out."""
        return "tab to the list · enter takes a line, or gets what is chosen · esc leave"

    def on_mount(self) -> None:
        """Show what there is."""
        self.query_one("#path", Input).focus()
        self._list()

    def on_unmount(self) -> None:
        """From now on its end is told by the app."""
        if self._action is not None:
            self._action.watched = False

    # --- what there is -----------------------------------------------------------------------------------

    @on(Input.Changed, "#path")
    def _list(self) -> None:
        """Ask for the folder that is typed, or narrow down what is known of it."""
        self.complain("")
        folder = self.query_one("#path", Input).value.rpartition("/")[0]
        if folder == self._folder:
            self._show_entries()
            return
        try:
            path = clean_path(folder)
        except UsageError as error:
            self.complain(error.message, error.hint)
            return
        self._folder, self._entries = folder, ()
        self.query_one("#said", Text).put("looking …")
        self.look(folder, path)

    @work(exclusive=True, group="list", exit_on_error=False)
    async def look(self, folder: str, path: str) -> None:
        """Ask the hosts what is in a folder."""
        try:
            entries = await self.files.entries(path)
        except EncampError as error:
            self.post_message(self.Listed(folder, (), error))
        else:
            self.post_message(self.Listed(folder, entries, None))

    @on(Listed)
    def _listed(self, event: Listed) -> None:
        if event.folder != self._folder:
            return
        self._entries = event.entries
        self._show_entries()
        if event.error is not None:
            self.query_one("#said", Text).put(fmt.sentences(event.error.message, event.error.hint))

    def _show_entries(self) -> None:
        """The entries that begin as what is typed."""
        begun = self.query_one("#path", Input).value.rpartition("/")[2]
        shown = [entry for entry in self._entries if entry.name.startswith(begun)][:MOST_SHOWN]
        width = max((len(entry.name) for entry in shown), default=0) + 1
        several = len(self.files.sessions) > 1
        entries = self.query_one("#entries", OptionList)
        entries.clear_options()
        entries.add_options(Option(_words(entry, width, several=several), entry.name) for entry in shown)
        entries.highlighted = 0 if shown else None
        entries.display = bool(shown)
        where = self._folder or "the run's folder"
        said = "" if shown else f"Nothing in {where} begins so." if self._entries else f"{where} is empty."
        self.query_one("#said", Text).put(said)

    @on(OptionList.OptionSelected)
    def _taken(self, event: OptionList.OptionSelected) -> None:
        entry = next((entry for entry in self._entries if entry.name == event.option_id), None)
        if entry is None:
            return
        path = self.query_one("#path", Input)
        folder = f"{self._folder}/" if self._folder else ""
        path.value = folder + entry.name + ("/" if entry.is_folder else "")
        path.cursor_position = len(path.value)
        (path if entry.is_folder else self.query_one("#get", Button)).focus()

    # --- fetching ----------------------------------------------------------------------------------------

    @on(Input.Submitted)
    @on(Button.Pressed, "#get")
    def _get(self) -> None:
        if self._action is not None and self._action.ended is None:
            return
        try:
            path = clean_path(self.query_one("#path", Input).value)
        except UsageError as error:
            self.complain(error.message, error.hint)
            return
        self.complain("")
        dest = Path(self.query_one("#dest", Input).value.strip() or ".").expanduser()

        async def fetch(progress: Progress) -> str:
            return await _fetch(self.files, path, dest, progress)

        self._action = Action(
            f"getting {path}",
            (),
            watched=True,
            undone="What has come is kept: getting it again goes on there.",
        )
        self.query_one("#get", Button).disabled = True
        self.query_one("#leave", Button).label = "stop"
        self.encamp.begin(self._action, fetch, show=False)
        self._watching = self.set_interval(LOOK_SECONDS, self._watch)

    @on(Button.Pressed, "#leave")
    def _leave(self) -> None:
        if self._action is not None and self._action.ended is None:
            self._action.call_off()
        else:
            self.action_leave()

    def _watch(self) -> None:
        action = self._action
        if action is None:
            return
        self.query_one("#stages", Lines).show(stage_lines(action))
        if action.ended is None:
            return
        if self._watching is not None:
            self._watching.stop()
        self.query_one("#get", Button).disabled = False
        self.query_one("#leave", Button).label = "leave"
        if action.error is not None:
            self.complain(action.error.message, action.error.hint)
        elif self.is_current:
            self.dismiss(None)


async def _fetch(files: RunFiles, path: str, dest: Path, progress: Progress) -> str:
    """Fetch what is at `path`, and say what came. Raises EncampError."""
    found = await files.find(path)
    host = found.host
    root = transfers.destination(dest, files.run if path == "." else path.rpartition("/")[2])
    start = time.monotonic()
    name = host.session.name
    try:
        download = Download(host, lambda now: progress(name, transfers.line(now, time.monotonic() - start)))
        fetched = await download.run(root, found.files, force=False)
        if found.is_folder:
            root.mkdir(parents=True, exist_ok=True)
    finally:
        await host.close()
    size = fmt.size(download.progress.total)
    said = f"{root}: {fmt.plural(len(fetched), 'file')}, {size}, verified, from {name}."
    if found.skipped:
        first = found.skipped[0]
        more = f" and {len(found.skipped) - 1} more" if len(found.skipped) > 1 else ""
        said += f" Left out: {first.path} ({first.reason}){more}."
    return said


def _words(entry: Entry, width: int, *, several: bool) -> Content:
    """An entry: a folder ends in a slash, a file has a size, and its host where there are several."""
    name = entry.name + ("/" if entry.is_folder else "")
    size = "" if entry.is_folder else fmt.size(entry.size)
    host = f"   {entry.host}" if several else ""
    return Content(printable(f"{name:<{width}}   {size:>8}{host}"))
