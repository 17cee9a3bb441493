"""The demo: hosts on loopback and a real training run, gone without a trace when it is over.

Nothing is simulated but the machines: each host is an SSH server in this process with a home of its own. From
there on all takes the ordinary way, from the inventory and the host key to the agent and torchrun.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import site
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles import library, schema

from . import demo_run
from . import demo_waits as waits
from .demo_run import DemoRun
from .fleet import drill as drilling
from .fleet import paths, run_watch, runs, status
from .fleet.errors import EncampError
from .fleet.fleet import Fleet
from .fleet.hosts import Inventory, parse_ssh_command
from .fleet.prompts import NoPrompts
from .fleet.session import Session
from .fleet.ssh.server import EmbeddedHost
from .fleet.store import NodeView, Store
from .lifetime import Signalled, show, until_signal

CONNECT_SECONDS = 120.0
"""How long the hosts may take until they are live, on a machine that is busy."""

STOP_GRACE_SECONDS = 3.0
"""How long the ranks may take to leave when the demo ends."""

DRILL_STEPS = 1_000_000
"""The run lasts as long as it is needed."""

Say = Callable[[str], None]


@dataclass
class Clock:
    """When what was reached, in seconds since the start; None for what was not."""

    began: float = field(default_factory=time.monotonic)
    connect: float | None = None
    """All hosts are live."""
    first_sample: float | None = None
    """The first host's telemetry is here."""
    first_step: float | None = None
    """All ranks have taken a step."""
    total: float | None = None
    """The run has ended."""

    def now(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self.began, 3)

    def as_json(self) -> dict[str, float | None]:
        """The object `seconds` of the demo's result."""
        return {
            "connect": self.connect,
            "first_sample": self.first_sample,
            "first_step": self.first_step,
            "total": self.total,
        }


def run(
    *,
    strategy: str,
    python: str,
    hosts: int,
    steps: int | None,
    headless: bool,
    drill: bool = False,
    say: Say,
) -> tuple[int, dict[str, Any] | None]:
    """Run the demo; returns the exit code, and with `headless` its result, with `drill` that of a drill.

    `python` is that of the ranks; empty: one that has what `strategy` needs. Raises EncampError.
    """
    if not Path("/proc/self/environ").exists():
        raise EncampError("The demo needs Linux: its hosts run on this machine.", "Add a real host instead.")
    what = demo_run.plan(strategy, python)
    site.getuserbase()  # remembers where it is before HOME changes
    work = _drill if drill else _headless if headless else _with_app
    with _own_folders():
        try:
            return asyncio.run(until_signal(work(what, hosts, steps, say)))
        except Signalled as end:
            return end.exit_code, None


async def _headless(
    what: DemoRun, hosts: int, steps: int | None, say: Say
) -> tuple[int, dict[str, Any] | None]:
    async with _launched(what, hosts, steps, say) as (fleet, session, run_id, clock):
        view = await run_watch.settled(session, await run_watch.wait(session, run_id, ()))
        clock.total = clock.now()
        say(f"{run_id} has ended: {view.info.state}")
        result = {
            "hosts": [
                {"name": host.name, "address": host.address, "state": status.link_word(host)}
                for host in fleet.store.hosts.values()
            ],
            "run": {"id": run_id, "state": view.info.state, "strategy": view.info.strategy},
            "ranks": [await _rank(session, view, number) for number in sorted(view.ranks)],
            "seconds": clock.as_json(),
        }
        if view.info.state != "finished":
            say((failure := await run_watch.failure(session, view)).message + "\n" + failure.tail)
    return 0 if view.info.state == "finished" else 1, result


async def _drill(what: DemoRun, hosts: int, steps: int | None, say: Say) -> tuple[int, dict[str, Any] | None]:
    def tell(at: float | None, text: str) -> None:
        say(text if at is None else f"{at:5.1f} s  {text}")

    async with _launched(what, hosts, DRILL_STEPS if steps is None else steps, say) as (fleet, _, run_id, _):
        outcome = await drilling.drill(fleet.store, fleet.sessions(), run_id, "demo", say=tell)
        say("ending the demo")
    return 0 if outcome.good else 1, drilling.document(outcome)


async def _with_app(
    what: DemoRun, hosts: int, steps: int | None, say: Say
) -> tuple[int, dict[str, Any] | None]:
    from .demo_app import DemoApp

    async with _launched(what, hosts, steps, say) as (fleet, _, run_id, _):
        code = await show(DemoApp(fleet, enter=_enter(), start_run=run_id))
        say("ending the demo")
    return code, None


@contextlib.asynccontextmanager
async def _launched(
    what: DemoRun, hosts: int, steps: int | None, say: Say
) -> AsyncGenerator[tuple[Fleet, Session, str, Clock], None]:
    """A fleet of `hosts` live hosts and a run on the first whose ranks have started."""
    clock = Clock()
    async with contextlib.AsyncExitStack() as stack:
        say(f"starting {hosts} SSH servers on loopback")
        environment = _environment()
        servers = [EmbeddedHost(f"demo-{number}", environment) for number in range(1, hosts + 1)]
        for server in servers:
            await stack.enter_async_context(server)
        inventory = Inventory(paths.hosts_file())
        for server in servers:
            inventory.add_target(parse_ssh_command(_ssh_command(server)), server.name)
        fleet = Fleet(inventory, Store(), NoPrompts(accept_new_host_key=True))
        stack.push_async_callback(fleet.close)
        fleet.start()
        say("connecting, and installing the agent on each")
        sessions = [fleet.session(server.name) for server in servers]
        await asyncio.gather(*(session.connected(CONNECT_SECONDS) for session in sessions))
        clock.connect = clock.now()
        first = sessions[0]
        await run_watch.until(
            first, lambda: first.view.sample, CONNECT_SECONDS, "The first sample did not come"
        )
        clock.first_sample = clock.now()
        say(f"other encamp commands work in another shell, after: {_enter()}")
        with waits.told(first, what, clock.now, say):
            run_id = await _launch(first, what, steps, say)
            stack.push_async_callback(_stop, first, run_id)
            await run_watch.started(first, run_id, 1)
            view = await run_watch.until(first, lambda: _stepped(first, run_id, what.ranks), None, "")
        if view.step:
            clock.first_step = clock.now()
        say(f"{run_id} trains on {first.name}")
        yield fleet, first, run_id, clock


async def _launch(session: Session, what: DemoRun, steps: int | None, say: Say) -> str:
    settings = what.settings if steps is None else (*what.settings, f"train.steps={steps}")
    profile = schema.load(library.find(demo_run.PROFILE), settings)
    ranks = "1 rank" if what.ranks == 1 else f"{what.ranks} ranks"
    say(f"launching {demo_run.PROFILE} under {what.strategy} with {ranks} on {session.name}")
    spec = runs.spec_from_profile(profile, runs.new_run_id(profile.name))
    result = await runs.launch(session, spec, runs.actor())
    return result.run


def _stepped(session: Session, run_id: str, ranks: int) -> NodeView | None:
    """The run once all its ranks have taken a step, or it has ended."""
    view = session.view.runs.get(run_id)
    if view is None or (view.live and not (len(view.ranks) >= ranks and view.step)):
        return None
    return view


async def _stop(session: Session, run_id: str) -> None:
    """End the run, so that nothing of it writes while its files are removed."""
    view = session.view.runs.get(run_id)
    if session.live and view is not None and view.live:
        with contextlib.suppress(EncampError):  # what is left is ended with its host
            await session.request(
                "stop", {"run": run_id, "actor": "demo", "grace_seconds": STOP_GRACE_SECONDS}
            )


async def _rank(session: Session, view: NodeView, number: int) -> dict[str, Any]:
    sample = view.ranks[number].sample
    params = {"run": view.id, "attempt": view.info.attempt, "rank": number, "limit": 1000}
    records = (await session.request("progress", params)).get("records")
    losses = [
        record["loss"]
        for record in (records if isinstance(records, list) else [])
        if isinstance(record, dict) and isinstance(record.get("loss"), int | float)
    ]
    return {
        "rank": number,
        "step": sample.step,
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "log_bytes": sample.log_bytes,
    }


def _ssh_command(server: EmbeddedHost) -> str:
    """What a provider's page would show for it."""
    return f"ssh -p {server.port} -i {server.client_key} -o IdentitiesOnly=yes demo@{server.address}"


def _environment() -> dict[str, str]:
    """What the hosts' commands get, so that the interpreter with torch works there too."""
    base = site.getuserbase()  # else a torch installed with pip --user would be looked for in the host's home
    return {"PYTHONUSERBASE": base} if base else {}


def _entrance(folder: Path) -> Path:
    """What another shell reads to see the hosts of the demo in `folder`."""
    return folder / "env"


def _enter() -> str:
    """The command after which other commands of encamp see the demo's hosts."""
    return f". {shlex.quote(str(_entrance(paths.config_dir().parent)))}"


@contextlib.contextmanager
def _own_folders() -> Iterator[None]:
    """An engineer's machine of its own for the body: nothing of the user's is read or written."""
    folder = Path(tempfile.mkdtemp(prefix="encamp-demo-"))
    values = {
        "ENCAMP_CONFIG_DIR": str(folder / "config"),
        "ENCAMP_STATE_DIR": str(folder / "state"),
        "HOME": str(folder),
    }
    before = {name: os.environ.get(name) for name in values}
    _entrance(folder).write_text(
        "".join(f"export {name}={shlex.quote(values[name])}\n" for name in values if name != "HOME")
    )
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
