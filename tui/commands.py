"""The `:` commands: what they are called, what they take, and what they do with the app."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .fleet.errors import UsageError

if TYPE_CHECKING:
    from .app import EncampApp

Complete = Callable[[str], Sequence[tuple[str, str]]]

MUTATING_ACTIONS = frozenset({"launch", "add_host", "stop", "restart", "continue", "remove_host", "shell"})
"""Names of the key actions that change a host or a run: not offered in read-only mode."""


def _nothing(_app: EncampApp) -> Iterable[str]:
    return ()


def _runs(app: EncampApp) -> Iterable[str]:
    return (run.id for run in app.store.runs())


def _live_runs(app: EncampApp) -> Iterable[str]:
    return (run.id for run in app.store.runs() if run.live or run.leftovers)


def _hosts(app: EncampApp) -> Iterable[str]:
    return app.store.hosts


def _themes(app: EncampApp) -> Iterable[str]:
    return sorted(app.available_themes)


def _profiles(app: EncampApp) -> Iterable[str]:
    return app.profile_names()


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `run` gets the app and what was typed after the name."""

    name: str
    usage: str
    summary: str
    run: Callable[[EncampApp, str], None]
    arguments: Callable[[EncampApp], Iterable[str]] = _nothing
    mutating: bool = False


COMMANDS = (
    Command("hosts", "", "all hosts", lambda app, _: app.show_fleet()),
    Command("runs", "", "all runs", lambda app, _: app.show_runs()),
    Command("run", "RUN [RANK]", "one run", lambda app, text: app.show_run(text), _runs),
    Command(
        "logs", "[RUN] [RANK]", "a rank's log, full screen", lambda app, text: app.show_logs(text), _runs
    ),
    Command(
        "diagnose",
        "[RUN]",
        "which rank holds a run up, or failed first",
        lambda app, text: app.diagnose(text),
        _runs,
    ),
    Command("timeline", "[RUN]", "what happened to a run", lambda app, text: app.show_timeline(text), _runs),
    Command("launch", "[PROFILE]", "start a run", lambda app, text: app.launch(text), _profiles, True),
    Command(
        "restart", "[RUN]", "stop a run, start it again", lambda app, text: app.restart(text), _runs, True
    ),
    Command(
        "continue",
        "[RUN]",
        "let ranks go on that a signal has stopped",
        lambda app, text: app.let_go_on(text),
        _live_runs,
        True,
    ),
    Command("stop", "[RUN]", "stop a run", lambda app, text: app.stop(text), _live_runs, True),
    Command(
        "get",
        "[RUN] [PATH]",
        "fetch files of a run, such as a checkpoint",
        lambda app, text: app.get(text),
        _runs,
    ),
    Command("add", "SSH COMMAND", "add a host", lambda app, text: app.add_host(text), mutating=True),
    Command("remove", "HOST", "forget a host", lambda app, text: app.remove_host(text), _hosts, True),
    Command(
        "shell",
        "HOST",
        "log in on a host; leaving it leads back",
        lambda app, text: app.shell(text),
        _hosts,
        True,
    ),
    Command(
        "check",
        "[HOST ...]",
        "what is in the way of training there",
        lambda app, text: app.check(text),
        _hosts,
    ),
    Command("connect", "HOST", "connect to a host now", lambda app, text: app.connect(text), _hosts),
    Command(
        "key", "HOST", "a host's key and its trouble", lambda app, text: app.show_host_problem(text), _hosts
    ),
    Command("theme", "NAME", "change the colours", lambda app, text: app.set_theme(text), _themes),
    Command("help", "", "the keys that work here", lambda app, _: app.show_help()),
    Command("quit", "", "leave", lambda app, _: app.exit()),
)


def offered(app: EncampApp) -> list[Command]:
    """The commands that may be used now."""
    found = [command for command in COMMANDS if not (command.mutating and app.read_only)]
    return [
        replace(command, summary=f"leave; {app.LEAVING}") if command.name == "quit" else command
        for command in found
    ]


def complete(app: EncampApp, typed: str) -> list[tuple[str, str]]:
    """Whole lines that `typed` may become, best first, each with what it does; at most eight."""
    name, space, rest = typed.partition(" ")
    commands = offered(app)
    if not space:
        return [(command.name, command.summary) for command in commands if command.name.startswith(name)][:8]
    command = next((command for command in commands if command.name == name), None)
    if command is None:
        return []
    values = [value for value in command.arguments(app) if value.startswith(rest)]
    if not rest and not values:
        return [(typed + command.usage, command.summary)] if command.usage else []
    return [(f"{name} {value}", command.summary) for value in values][:8]


def run(app: EncampApp, typed: str) -> None:
    """Do what was typed; a refusal becomes a notification."""
    name, _, rest = typed.strip().partition(" ")
    if not name:
        return
    try:
        find(app, name).run(app, rest.strip())
    except UsageError as error:
        app.show_error(error)


def find(app: EncampApp, name: str) -> Command:
    """The command of that name, or the only one that begins so. Raises UsageError."""
    commands = offered(app)
    exact = [command for command in commands if command.name == name]
    begun = exact or [command for command in commands if command.name.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(
            f":{name} can be {', '.join(command.name for command in begun)}.", "Type one more letter."
        )
    if any(command.name == name for command in COMMANDS):
        raise UsageError(f":{name} is not offered in read-only mode.", "Start encamp without --read-only.")
    close = difflib.get_close_matches(name, [command.name for command in commands], n=1)
    raise UsageError(
        f"There is no command :{name}.",
        f"Did you mean :{close[0]}?" if close else "`:` and tab shows what there is.",
    )
