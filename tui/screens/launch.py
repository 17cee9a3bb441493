"""Starts a run: which profile, on which hosts, with what changed. What each would run is shown before."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, Input, Select
from textual.widgets.selection_list import Selection

from profiles import library, schema
from profiles.errors import ProfileError

from .. import formatting as fmt
from ..actions import Action
from ..facts import gpu_totals
from ..fleet import coordinator, job, outlook, runs
from ..fleet.arrange import Blocked
from ..fleet.errors import EncampError, UsageError
from ..fleet.job import Job
from ..fleet.outlook import Outlook
from ..fleet.parallel import Progress
from ..fleet.sanitize import printable
from ..fleet.store import HostView, Link
from ..widgets.lines import Lines
from ..widgets.mark_list import MarkList
from ..widgets.strategy_list import StrategyField
from .dialog import Dialog, Text
from .going import stage_lines
from .strategy import StrategyChoice

PAUSE_SECONDS = 0.3
"""How long typing has to rest before the hosts are asked what they would run."""

LOOK_SECONDS = 0.1
"""How often a launch that goes on is looked at."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the fields say. `hosts` are in the order in which they were marked."""

    profile: str
    hosts: tuple[str, ...]
    overrides: tuple[str, ...]
    forced: str = ""
    """Why to start in spite of what the pre-flight found."""


class LaunchScreen(Dialog[str]):
    """Answers with the id of the run that was started."""

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - as the base class has it

    @dataclass
    class Previewed(Message):
        """The hosts said what they would run."""

        choice: Choice
        job: Job
        outlook: Outlook

    @dataclass
    class Refused(Message):
        """It would not start."""

        choice: Choice
        error: EncampError

    def __init__(self, profiles_folder: Path, *, profile: str = "", host: str | None = None) -> None:
        super().__init__("launch a run")
        self.folder = profiles_folder
        self.names = [entry.name for entry in library.available(profiles_folder)]
        if profile and profile not in self.names:
            self.names.insert(0, profile)  # a file, named by its path
        self.profile = profile
        self.host = host
        self._rest: Timer | None = None
        self._asked: Choice | None = None
        """What the hosts were asked about last, while the fields still say so."""
        self._action: Action | None = None
        """The launch that goes on."""
        self._run = ""
        """Its run, once that has a name."""

    def body(self) -> ComposeResult:
        """The fields, and what they amount to."""
        hosts = list(self.encamp.store.hosts.values())
        names = [host.name for host in hosts]
        live = [host.name for host in hosts if host.link is Link.LIVE]
        chosen = self.host if self.host in names else next(iter(live or names), None)
        profile = self.profile if self.profile in self.names else next(iter(self.names), Select.NULL)
        with Horizontal(classes="fields"):
            yield Text("profile", classes="name")
            yield Select(
                [(name, name) for name in self.names],
                value=profile,
                allow_blank=not self.names,  # else the list begins with an entry that stands for none
                id="profile",
                compact=True,
            )
        yield Text(id="description", classes="quiet indented")
        with Horizontal(classes="fields tall"):
            yield Text("hosts", classes="name")
            width = max(map(len, names), default=0)
            yield MarkList(
                *(Selection(_host_words(host, width), host.name, host.name == chosen) for host in hosts),
                id="hosts",
                compact=True,
            )
        yield StrategyChoice()
        with Horizontal(classes="fields"):
            yield Text("ranks a host", classes="name")
            yield Input(placeholder="as the profile says; auto: one a GPU or core", id="nproc", compact=True)
        with Horizontal(classes="fields"):
            yield Text("change", classes="name")
            yield Input(placeholder="train.steps=500 env.NCCL_DEBUG=INFO", id="set", compact=True)
        with Horizontal(classes="fields", id="force-row"):
            yield Text("all the same", classes="name")
            yield Input(
                placeholder="why it is to start in spite of that; it is noted down", id="force", compact=True
            )
        yield Text(id="said", classes="paragraph quiet")
        with VerticalScroll(id="preview-box"):
            yield Text(id="preview")
        yield Lines(id="stages")
        with Horizontal(classes="buttons"):
            yield Button("launch", id="launch", variant="primary", compact=True, disabled=True)
            yield Button("leave", id="leave", compact=True)

    def hint(self) -> str:
        """The way on and the way out."""
        return "tab next · space marks, opens a list · enter twice launches · esc leave"

    def on_mount(self) -> None:
        """Show what the fields amount to as they are."""
        self.query_one("#force-row").display = self.query_one("#stages").display = False
        hosts = self._host_list()
        hosts.highlighted = next((at for at, host in enumerate(hosts.names()) if host in hosts.selected), 0)
        self._look()

    def on_unmount(self) -> None:
        """From now on its end is told by the app."""
        if self._action is not None:
            self._action.watched = False

    @on(Select.Changed)
    @on(Input.Changed)
    @on(MarkList.SelectedChanged)
    @on(StrategyField.Changed)
    def _changed(self) -> None:
        self._strategy.on_hosts(self._host_list().selected)
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
        if self._action is not None and self._action.ended is None:
            self._action.call_off()
        else:
            self.action_leave()

    @on(Button.Pressed, "#launch")
    def _launch(self) -> None:
        try:
            choice = self.choice()
            self._profile(choice)
        except UsageError as error:
            self.complain(error.message, error.hint)
            return
        if self._action is None:
            self._start(choice)

    # --- what the fields say -----------------------------------------------------------------------------

    def choice(self) -> Choice:
        """What is chosen. Raises UsageError when something is missing or cannot be read."""
        profile, hosts = self.query_one("#profile", Select).value, tuple(self._host_list().selected)
        if not isinstance(profile, str):
            raise UsageError("There is no profile.", f"Put one into {self.folder}.")
        if not hosts:
            if self._host_list().names():
                raise UsageError("No host is marked.", "Mark one or several in the list with space.")
            raise UsageError("There is no host.", "Leave with esc and add one with a.")
        overrides = []
        overrides += self._strategy.overrides
        ranks = self.query_one("#nproc", Input).value.strip()
        if ranks:
            overrides.append(f"run.nproc_per_node={ranks}")
        try:
            overrides += shlex.split(self.query_one("#set", Input).value)
        except ValueError as error:
            raise UsageError("A quote in `change` is not closed.", "Each change is key=value.") from error
        return Choice(profile, hosts, tuple(overrides), self.query_one("#force", Input).value.strip())

    def _host_list(self) -> MarkList:
        return self.query_one("#hosts", MarkList)

    @property
    def _strategy(self) -> StrategyChoice:
        return self.query_one(StrategyChoice)

    def _profile(self, choice: Choice, *, own: bool = False) -> schema.Profile:
        """The profile with what is changed; with `own`, but for the strategy that is chosen in the list."""
        chosen = self._strategy.overrides if own else []
        overrides = [each for each in choice.overrides if each not in chosen]
        try:
            return schema.load(library.find(choice.profile, self.folder), overrides)
        except ProfileError as error:
            raise UsageError(str(error.faults[0])) from error

    def _current(self) -> Choice | None:
        try:
            return self.choice()
        except UsageError:
            return None

    # --- what the hosts would do -------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask the hosts what they would run; nothing starts."""
        self._strategy.on_hosts(self._host_list().selected)
        try:
            choice = self.choice()
            profile = self._profile(choice)
            self._strategy.of_profile(profile, self._profile(choice, own=True).run.strategy)
        except UsageError as error:
            self._say("")
            self.complain(error.message, error.hint)
            return
        self.query_one("#description", Text).put(profile.description)
        for name in choice.hosts:
            host = self.encamp.store.hosts.get(name)
            if host is None or host.link is not Link.LIVE:
                state = "gone" if host is None else host.link.value
                self._say("")
                self.complain(f"{name} is {state}.", "Choose live hosts, or wait until it is live.")
                return
        self._asked = choice
        self._say(
            f"asking {fmt.listed(choice.hosts)} what {'they' if choice.hosts[1:] else 'it'} would run …"
        )
        self.ask(choice, profile)

    @work(exclusive=True, group="preview", exit_on_error=False)
    async def ask(self, choice: Choice, profile: schema.Profile) -> None:
        """Find out what the hosts would run."""
        try:
            wanted = await job.from_profile(profile, dry_run=True)
            sessions = [self.encamp.fleet.session(name) for name in choice.hosts]
            found = await outlook.look(
                sessions, wanted, runs.actor(), forced=choice.forced, progress=lambda _host, _stage: None
            )
        except EncampError as error:
            self.post_message(self.Refused(choice, error))
        else:
            self.post_message(self.Previewed(choice, wanted, found))

    @on(Previewed)
    def _previewed(self, event: Previewed) -> None:
        if self._action is not None or event.choice != self._current():
            return
        self.complain("")
        found, sent = event.outlook, _sent(event.job)
        ranks = fmt.plural(found.nproc_per_node, "rank")
        if len(found.hosts) == 1:
            said = f"{found.hosts[0]} would start {ranks}"
        else:
            said = f"{len(found.hosts)} hosts would start {ranks} each"
        if found.rendezvous is not None:
            said += f" and meet at {found.hosts[0]}, {found.rendezvous.address}:{found.rendezvous.port}"
        commands = []
        for number, name in enumerate(found.hosts):
            first = number * found.nproc_per_node
            if name in found.commands:
                where = f"{name}, {fmt.span_of(first, first + found.nproc_per_node - 1)}:"
                commands += [where] * (len(found.hosts) > 1) + [found.commands[name]]
        self._say(f"{said}{sent}" + (":" if commands else "."), "\n".join(commands))
        self.query_one("#launch", Button).disabled = False

    @on(Refused)
    def _refused(self, event: Refused) -> None:
        if self._action is None and event.choice == self._current():
            self._say("")
            self._explain(event.error)

    def _explain(self, error: EncampError) -> None:
        """Say why it does not start; what the pre-flight found may be overruled, with a reason."""
        if isinstance(error, Blocked):
            found = [
                f"{finding.host}: {fmt.sentences(finding.text, finding.fix)}"
                if finding.host
                else fmt.sentences(finding.text, finding.fix)
                for finding in error.findings
            ]
            self.complain("\n".join(found))
        else:
            self.complain(error.message, error.hint)
        if isinstance(error, Blocked) or getattr(error, "code", None) == "gpus-held":
            self.query_one("#force-row").display = True

    def _say(self, text: str, command: str = "") -> None:
        said = self.query_one("#said", Text)
        said.put(text)
        said.display = bool(text)
        self.query_one("#preview", Text).put(command)
        self.query_one("#preview-box").display = bool(command)

    # --- the launch --------------------------------------------------------------------------------------

    def _start(self, choice: Choice) -> None:
        """Start the run; from here on it goes on without this dialog, unless it is called off."""

        async def start(progress: Progress) -> str:
            wanted = await job.from_profile(self._profile(choice))
            self._run = wanted.spec.run
            sessions = [self.encamp.fleet.session(name) for name in choice.hosts]
            begun = await coordinator.launch(
                sessions, wanted, runs.actor(), forced=choice.forced, progress=progress
            )
            return f"{begun.run} runs: {fmt.plural(begun.world_size, 'rank')} on {fmt.listed(begun.hosts)}."

        self._action = Action(f"launching {choice.profile}", choice.hosts, watched=True)
        self._say("starting …")
        self.query_one("#launch", Button).disabled = True
        self.query_one("#leave", Button).label = "call it off"
        self.query_one("#stages").display = True
        self.encamp.begin(self._action, start, show=False)
        self._rest = self.set_interval(LOOK_SECONDS, self._watch)

    def _watch(self) -> None:
        """Lead on to the run as soon as there is something of it to be seen."""
        action = self._action
        if action is None or not self.is_current:
            return
        self.query_one("#stages", Lines).show(stage_lines(action))
        if action.ended is not None and action.error is not None:
            self._failed(action, action.error)
            return
        run = self.encamp.store.find_run(self._run)
        # On several hosts it may still come to nothing while they only prepare.
        if run is not None and (action.ended is not None or len(action.hosts) == 1 or run.ranks):
            self.dismiss(run.id)

    def _failed(self, action: Action, error: EncampError) -> None:
        if self._rest is not None:
            self._rest.stop()
        self._action = None
        action.watched = True  # it is said here
        self.query_one("#launch", Button).disabled = False
        self.query_one("#leave", Button).label = "leave"
        self._say("")
        self._explain(error)


def _host_words(host: HostView, width: int) -> Content:
    """A host in the list: its name, why it cannot be used or what it has."""
    if host.link is not Link.LIVE:
        has = host.link.value
    else:
        totals, _ = gpu_totals(host.sample.gpu) if host.sample is not None else (None, "")
        has = f"{totals.number_of} {totals.model}" if totals is not None else "no GPUs"
    return Content(printable(f"{host.name:<{width}}   {has}"))


def _sent(wanted: Job) -> str:
    """What the hosts are sent before it starts."""
    parts = []
    if wanted.project is not None:
        tree = wanted.project.tree
        parts.append(f"{fmt.plural(tree.files, 'file')} of {tree.name}, {fmt.size(tree.bytes)}")
    if wanted.spec.env_setup is not None:
        parts.append(f"an environment with {fmt.listed(wanted.spec.env_setup.packages)}")
    return f"; before that they get {' and '.join(parts)}" if parts else ""
