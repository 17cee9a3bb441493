"""The app: which screen is shown, and what screens and commands can ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("TEXTUAL_FPS", "20")  # read when textual is imported

from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from profiles import library, schema
from profiles.errors import ProfileError

from . import acting, alerts, aside, commands, heap, meant, run_facts, theme
from . import formatting as fmt
from .actions import Action, Work
from .examining import Examinations
from .fleet.errors import EncampError, UsageError
from .fleet.hosts import Host
from .fleet.paths import config_dir
from .fleet.preflight import Report
from .fleet.sanitize import printable
from .fleet.session import Session
from .fleet.store import HostView, RunView, Store
from .palette import FleetProvider
from .ports import FleetPort
from .questions import Questions
from .screens.add_host import AddHostScreen
from .screens.base import BaseScreen
from .screens.check import CheckScreen
from .screens.confirm import ConfirmScreen
from .screens.diagnosis import DiagnosisScreen
from .screens.fleet import FleetScreen
from .screens.going import GoingScreen
from .screens.help import HelpScreen
from .screens.host_key import HostProblemScreen
from .screens.launch import LaunchScreen
from .screens.logs import LogsScreen
from .screens.run import RunScreen
from .screens.runs import RunsScreen
from .screens.timeline import TimelineScreen

SETTLE_SECONDS = 2.0
"""When the first screen stands and nothing of the start is left to be thrown away."""


class EncampApp(App[None]):
    """The cockpit over `fleet`; opens on the run `start_run` when that is given."""

    CSS_PATH = "encamp.tcss"
    TITLE = "encamp"
    COMMANDS: ClassVar = App.COMMANDS | {FleetProvider}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+q", "quit", "quit", show=False, priority=True, id="app.quit", tooltip="leave; runs go on"
        ),
        Binding(
            "ctrl+p", "command_palette", "palette", show=False, id="app.palette", tooltip="find anything"
        ),
    ]

    LEAVING = "all runs go on"
    """What becomes of the runs when the app is left."""

    @dataclass
    class Done(Message):
        """An action on a host went well."""

        text: str

    @dataclass
    class Failed(Message):
        """An action on a host was refused."""

        error: EncampError

    @dataclass
    class Ended(Message):
        """An action on hosts has ended, well or not."""

        action: Action

    def __init__(self, fleet: FleetPort, *, start_run: str | None = None, read_only: bool = False) -> None:
        super().__init__()
        self.fleet = fleet
        self.read_only = read_only
        self.questions = Questions(self)
        self.reports: dict[tuple[str, ...], Report] = {}
        """The last check of each group of hosts that was checked, by their names."""
        self.examinations = Examinations(self)
        self._alerts = alerts.Alerts()
        fleet.prompts = self.questions
        self._start_run = start_run
        self.register_theme(theme.DARK)
        self.register_theme(theme.LIGHT)
        if "TEXTUAL_THEME" not in os.environ:
            self.theme = theme.DEFAULT

    @property
    def store(self) -> Store:
        """Everything there is to show."""
        return self.fleet.store

    def get_default_screen(self) -> Screen[Any]:
        """The fleet is where everything starts."""
        return FleetScreen()

    def on_mount(self) -> None:
        """Open where the user wants to be, and ask what connections wanted to know before we were there."""
        if self._start_run is not None:
            self.push_screen(RunScreen(self._start_run))
        self.questions.go_on()
        self.set_timer(SETTLE_SECONDS, heap.settle)
        self.set_interval(alerts.SECONDS, self._listen)

    def on_unmount(self) -> None:
        """Nobody is there to answer any more."""
        self.questions.close()

    def _listen(self) -> None:
        for alert in self._alerts.news(self.store):
            alerts.announce(self, alert)

    def write_sequence(self, code: str) -> None:
        """Send the terminal an escape sequence that changes nothing on the screen."""
        if self._driver is not None and not self.is_headless and code:
            self._driver.write(code)

    @on(Questions.Next)
    def _next_question(self) -> None:
        self.questions.go_on()

    # --- screens -----------------------------------------------------------------------------------------

    def back(self) -> None:
        """Leave the screen on top; the fleet stays."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.notify(f"ctrl-q leaves encamp; {self.LEAVING}.", timeout=3)

    def show_fleet(self) -> None:
        """Show all hosts."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def show_runs(self) -> None:
        """Show all runs."""
        self.show_fleet()
        self.push_screen(RunsScreen())

    def show_run(self, text: str) -> None:
        """Show a run: `text` is its id and perhaps a rank to select. Raises UsageError."""
        run, rank = meant.run_and_rank(self, text)
        if isinstance(self.screen, RunScreen):
            if self.screen.run_id == run.id:
                return
            self.pop_screen()
        self.push_screen(RunScreen(run.id, rank))

    def show_logs(self, text: str) -> None:
        """Show a log on the whole screen: `text` is a run and perhaps a rank; without, those shown here.

        Raises UsageError.
        """
        run, rank = meant.run_and_rank(self, text)
        if rank is None and isinstance(self.screen, RunScreen) and self.screen.run_id == run.id:
            rank = self.screen.rank
        self.open_logs(run.id, min(run.ranks, default=run_facts.LAUNCHER) if rank is None else rank)

    def open_logs(self, run_id: str, rank: int) -> None:
        """Show the log of a rank, or of the launcher, on the whole screen."""
        self.push_screen(LogsScreen(run_id, rank))

    def diagnose(self, run_id: str) -> None:
        """Show which rank holds a run up, or failed first. Raises UsageError."""
        self._show_about(DiagnosisScreen, self.find_run(run_id))

    def show_timeline(self, run_id: str) -> None:
        """Show what happened to a run. Raises UsageError."""
        self._show_about(TimelineScreen, self.find_run(run_id))

    def _show_about(self, kind: type[DiagnosisScreen | TimelineScreen], run: RunView) -> None:
        """Show a screen of that kind about a run, unless it is the one on top."""
        screen = self.screen
        if not isinstance(screen, kind) or screen.run_id != run.id:
            self.push_screen(kind(run.id))

    def show_help(self) -> None:
        """Show the keys and commands that work here."""
        screen = self.screen
        if not isinstance(screen, HelpScreen):
            first = screen.keys() if isinstance(screen, BaseScreen) else ()
            self.push_screen(
                HelpScreen(
                    list(screen.active_bindings.values()), commands.offered(self), first, self.more_help()
                )
            )

    def more_help(self) -> list[tuple[str, str]]:
        """What the help says beyond keys and commands: (what is typed, what it does)."""
        return []

    def set_theme(self, name: str) -> None:
        """Change the colours. Raises UsageError."""
        if not name:
            self.action_change_theme()
        elif name in self.available_themes:
            self.theme = name
        else:
            raise UsageError(
                f"There is no theme {name}.", f"There are {', '.join(sorted(self.available_themes))}."
            )

    # --- hosts -------------------------------------------------------------------------------------------

    def find_host(self, name: str) -> HostView:
        """The host of that name; without one, the host under the cursor. Raises UsageError."""
        return meant.host(self, name)

    def connect(self, name: str) -> None:
        """Connect to a host now. Raises UsageError."""
        self.fleet.session(self.find_host(name).name).retry_now()

    def shell(self, name: str) -> None:
        """Log in on a host, on this terminal; the app comes back afterwards. Raises UsageError."""
        self._shell(self.find_host(name).name)

    @work(group="action", exit_on_error=False)
    async def _shell(self, name: str) -> None:
        try:
            await aside.run(self, "shell", "--wait-on-error", name)
        except EncampError as error:
            self.post_message(self.Failed(error))

    def check(self, text: str) -> None:
        """Check a host, or several together: `text` has their names. Raises UsageError."""
        names = [self.find_host(name).name for name in text.split() or [""]]
        self.push_screen(CheckScreen(list(dict.fromkeys(names))))

    def add_host(self, text: str) -> None:
        """Ask for a host and add it."""

        def added(host: Host | None) -> None:
            if host is None:
                return
            try:
                self.fleet.inventory.add(host)
            except EncampError as error:
                self.show_error(error)
                self.push_screen(AddHostScreen(host.address), added)
            else:
                self.fleet.add(host)
                self.notify(f"{host.name} was added.", markup=False)

        self.push_screen(AddHostScreen(text), added)

    def remove_host(self, name: str) -> None:
        """Forget a host, after a question. Raises UsageError."""
        host = self.find_host(name)
        live = sum(run.live for run in host.runs.values())
        going = f"{fmt.plural(live, 'live run')} {'goes' if live == 1 else 'go'} on; " if live else ""
        facts = [("there", f"{going}everything stays on its disk"), ("here", "it is no longer listed")]
        self.push_screen(
            ConfirmScreen(f"remove {host.name} ({host.address})", facts, "remove"),
            _if_yes(lambda: self._remove_host(host.name)),
        )

    @work(group="action", exit_on_error=False)
    async def _remove_host(self, name: str) -> None:
        try:
            self.fleet.inventory.remove(name)
        except EncampError as error:
            self.post_message(self.Failed(error))
        else:
            await self.fleet.remove(name)
            self.post_message(self.Done(f"{name} was removed."))

    def show_host_problem(self, name: str) -> None:
        """Show what is wrong with a host, in full. Raises UsageError."""
        host = self.find_host(name)
        self.push_screen(HostProblemScreen(host), _if_yes(lambda: self.connect(host.name)))

    # --- runs --------------------------------------------------------------------------------------------

    def find_run(self, run_id: str) -> RunView:
        """The run of that name or prefix; without one, the run shown here. Raises UsageError."""
        return meant.run(self, run_id)

    @property
    def profiles_folder(self) -> Path:
        """Where the user's own profiles are."""
        return config_dir() / "profiles"

    def profile_names(self) -> Iterable[str]:
        """All profiles that can be launched by name."""
        return [entry.name for entry in library.available(self.profiles_folder)]

    def launch(self, profile: str, host: str | None = None) -> None:
        """Ask what to start and where, and start it. Raises UsageError for a profile that there is not."""
        if profile:
            try:
                schema.load(library.find(profile, self.profiles_folder))
            except ProfileError as error:
                raise UsageError(str(error.faults[0])) from error
        screen = LaunchScreen(self.profiles_folder, profile=profile, host=host)

        def launched(run_id: str | None) -> None:
            if run_id:
                self.push_screen(RunScreen(run_id))

        self.push_screen(screen, launched)

    def sessions(self) -> list[Session]:
        """Connections with all hosts."""
        return [self.fleet.session(name) for name in self.store.hosts]

    def restart(self, run_id: str) -> None:
        """Restart a run on all of its hosts, after a question. Raises UsageError."""
        acting.restart(self, run_id)

    def let_go_on(self, run_id: str) -> None:
        """Let the ranks of a run go on that a signal has stopped. Raises UsageError."""
        acting.let_go_on(self, run_id)

    def stop(self, run_id: str) -> None:
        """Stop a run on all of its hosts, after a question. Raises UsageError."""
        acting.stop(self, run_id)

    def get(self, text: str) -> None:
        """Ask which files of a run are wanted: `text` is its id and perhaps a path. Raises UsageError."""
        acting.get(self, text)

    def begin(self, action: Action, work: Work, *, show: bool = True) -> None:
        """Carry out an action in the background; with `show` in sight of the user."""
        self._carry_out(action, work)
        if show:
            self.push_screen(GoingScreen(action))

    @work(group="action", exit_on_error=False)
    async def _carry_out(self, action: Action, work: Work) -> None:
        await action.carry_out(work)
        self.post_message(self.Ended(action))

    # --- what actions lead to ----------------------------------------------------------------------------

    @on(Ended)
    def _ended(self, event: Ended) -> None:
        action = event.action
        if action.error is None:
            self.notify(printable(action.result), markup=False)
        elif not action.watched:
            self.show_error(action.error)

    @on(Done)
    def _done(self, event: Done) -> None:
        self.notify(printable(event.text), markup=False)

    @on(Failed)
    def _failed(self, event: Failed) -> None:
        self.show_error(event.error)

    def show_error(self, error: EncampError) -> None:
        """One line on what went wrong and what to do next."""
        text = printable(fmt.sentences(error.message, error.hint))
        self.notify(text, severity="error", timeout=8, markup=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker that failed for a reason that nobody foresaw must not go unseen. Screens call this too."""
        if event.state is WorkerState.ERROR:
            error = event.worker.error
            self.show_error(
                EncampError(f"Internal error in {event.worker.name}: {error!r}", "Please report it.")
            )

    def get_system_commands(self, _screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The `:` commands that need no argument, for the palette."""
        for command in commands.offered(self):
            if not command.usage or command.usage.startswith("["):
                yield SystemCommand(
                    f":{command.name}", command.summary, lambda name=command.name: commands.run(self, name)
                )
        yield SystemCommand(":theme", "change the colours", self.action_change_theme)


def _if_yes(action: Callable[[], object]) -> Callable[[bool | None], None]:
    """What a yes-or-no dialog is to do with its answer."""

    def answered(yes: bool | None) -> None:
        if yes:
            action()

    return answered
