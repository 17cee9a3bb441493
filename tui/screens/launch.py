"""Starts a run: which profile, where, with what changed. The exact command is shown before it starts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, Input, Select

from profiles import keys, library, schema
from profiles.errors import ProfileError

from .. import formatting as fmt
from ..fleet import runs
from ..fleet.errors import EncampError, UsageError
from ..fleet.store import Link
from .dialog import Dialog, Text

PAUSE_SECONDS = 0.3
"""How long typing has to rest before the host is asked what it would run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the fields say."""

    profile: str
    host: str
    overrides: tuple[str, ...]


class LaunchScreen(Dialog[str]):
    """Answers with the id of the run that was started."""

    @dataclass
    class Previewed(Message):
        """The host said what it would run."""

        choice: Choice
        result: runs.LaunchResult

    @dataclass
    class Launched(Message):
        """The run was started."""

        result: runs.LaunchResult

    @dataclass
    class Refused(Message):
        """It would not, or did not, start."""

        choice: Choice | None
        message: str
        hint: str

    def __init__(self, profiles_folder: Path, *, profile: str = "", host: str | None = None) -> None:
        super().__init__("launch a run")
        self.folder = profiles_folder
        self.names = [entry.name for entry in library.available(profiles_folder)]
        self.profile = profile
        self.host = host
        self._rest: Timer | None = None
        self._starting = False
        self._asked: Choice | None = None
        """What the host was asked about last, while the fields still say so."""

    def body(self) -> ComposeResult:
        """The fields, and the command they amount to."""
        hosts = list(self.encamp.store.hosts.values())
        names = [host.name for host in hosts]
        live = [host.name for host in hosts if host.link is Link.LIVE]
        chosen = self.host if self.host in names else next(iter(live or names), Select.NULL)
        profile = self.profile if self.profile in self.names else next(iter(self.names), Select.NULL)
        with Horizontal(classes="fields"):
            yield Text("profile", classes="name")
            yield Select([(name, name) for name in self.names], value=profile, id="profile", compact=True)
        yield Text(id="description", classes="quiet indented")
        with Horizontal(classes="fields"):
            yield Text("host", classes="name")
            yield Select([(name, name) for name in names], value=chosen, id="host", compact=True)
        with Horizontal(classes="fields"):
            yield Text("strategy", classes="name")
            yield Select(
                [(name, name) for name in keys.STRATEGIES],
                prompt="as the profile says",
                id="strategy",
                compact=True,
            )
        with Horizontal(classes="fields"):
            yield Text("ranks a host", classes="name")
            yield Input(placeholder="as the profile says; auto is one a GPU", id="nproc", compact=True)
        with Horizontal(classes="fields"):
            yield Text("change", classes="name")
            yield Input(placeholder="train.steps=500 env.NCCL_DEBUG=INFO", id="set", compact=True)
        yield Text(id="said", classes="paragraph quiet")
        with VerticalScroll(id="preview-box"):
            yield Text(id="preview")
        with Horizontal(classes="buttons"):
            yield Button("launch", id="launch", variant="primary", compact=True, disabled=True)
            yield Button("leave", id="leave", compact=True)

    def hint(self) -> str:
        """The way on and the way out."""
        return "tab next field · enter open a list, or launch · esc leave"

    def on_mount(self) -> None:
        """Show what the fields amount to as they are."""
        self._look()

    @on(Select.Changed)
    @on(Input.Changed)
    def _changed(self) -> None:
        if self._asked is not None and self._current() == self._asked:
            return  # the fields were only filled in
        self._asked = None
        self.query_one("#launch", Button).disabled = True
        self.complain("")
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(PAUSE_SECONDS, self._look)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        button = self.query_one("#launch", Button)
        if not button.disabled:
            button.focus()

    @on(Button.Pressed, "#leave")
    def _leave(self) -> None:
        self.action_leave()

    @on(Button.Pressed, "#launch")
    def _launch(self) -> None:
        if self._starting:
            return
        try:
            choice = self.choice()
            self._profile(choice)
        except UsageError as error:
            self.complain(error.message, error.hint)
            return
        self._starting = True
        self.query_one("#launch", Button).disabled = True
        self._say("starting …")
        self.start(choice)

    # --- what the fields say -----------------------------------------------------------------------------

    def choice(self) -> Choice:
        """What is chosen. Raises UsageError when something is missing or cannot be read."""
        profile, host = self.query_one("#profile", Select).value, self.query_one("#host", Select).value
        if not isinstance(profile, str):
            raise UsageError("There is no profile.", f"Put one into {self.folder}.")
        if not isinstance(host, str):
            raise UsageError("There is no host.", "Leave with esc and add one with a.")
        overrides = []
        strategy = self.query_one("#strategy", Select).value
        if isinstance(strategy, str):
            overrides.append(f"run.strategy={strategy}")
        ranks = self.query_one("#nproc", Input).value.strip()
        if ranks:
            overrides.append(f"run.nproc_per_node={ranks}")
        try:
            overrides += shlex.split(self.query_one("#set", Input).value)
        except ValueError as error:
            raise UsageError("A quote in `change` is not closed.", "Each change is key=value.") from error
        return Choice(profile, host, tuple(overrides))

    def _profile(self, choice: Choice) -> schema.Profile:
        try:
            return schema.load(library.find(choice.profile, self.folder), choice.overrides)
        except ProfileError as error:
            raise UsageError(str(error.faults[0])) from error

    def _look(self) -> None:
        """Ask the host what it would run; nothing starts."""
        try:
            choice = self.choice()
            profile = self._profile(choice)
        except UsageError as error:
            self._say("")
            self.complain(error.message, error.hint)
            return
        self.query_one("#description", Text).put(profile.description)
        host = self.encamp.store.hosts.get(choice.host)
        if host is None or host.link is not Link.LIVE:
            state = "gone" if host is None else host.link.value
            self._say("")
            self.complain(f"{choice.host} is {state}.", "Choose a live host, or wait until it is live.")
            return
        self._asked = choice
        self._say(f"asking {choice.host} what it would run …")
        self.ask(choice)

    def _say(self, text: str, command: str = "") -> None:
        said = self.query_one("#said", Text)
        said.put(text)
        said.display = bool(text)
        self.query_one("#preview", Text).put(command)
        self.query_one("#preview-box").display = bool(command)

    # --- the host ----------------------------------------------------------------------------------------

    @work(exclusive=True, group="preview", exit_on_error=False)
    async def ask(self, choice: Choice) -> None:
        """Find out what the host would run."""
        result = await self._request(choice, dry_run=True)
        if result is not None:
            self.post_message(self.Previewed(choice, result))

    @work(exclusive=True, group="launch", exit_on_error=False)
    async def start(self, choice: Choice) -> None:
        """Start the run."""
        result = await self._request(choice, dry_run=False)
        if result is not None:
            self.post_message(self.Launched(result))

    async def _request(self, choice: Choice, *, dry_run: bool) -> runs.LaunchResult | None:
        try:
            spec = runs.spec_from_profile(self._profile(choice), runs.new_run_id(choice.profile))
            session = self.encamp.fleet.session(choice.host)
            return await runs.launch(session, spec, runs.actor(), dry_run=dry_run)
        except EncampError as error:
            self.post_message(self.Refused(choice if dry_run else None, error.message, error.hint))
            return None

    @on(Previewed)
    def _previewed(self, event: Previewed) -> None:
        if self._starting or event.choice != self._current():
            return
        result = event.result
        ranks = fmt.plural(result.world_size, "rank")
        self._say(f"{event.choice.host} would start {ranks}:", result.command_line)
        self.query_one("#launch", Button).disabled = False

    @on(Launched)
    def _launched(self, event: Launched) -> None:
        self.dismiss(event.result.run)

    @on(Refused)
    def _refused(self, event: Refused) -> None:
        if event.choice is None:
            self._starting = False
            self.query_one("#launch", Button).disabled = False
        elif event.choice != self._current():
            return
        self._say("")
        self.complain(event.message, event.hint)

    def _current(self) -> Choice | None:
        try:
            return self.choice()
        except UsageError:
            return None
