"""What a restart means for a run, before it is done: who restarts, what it goes on from, what is lost.

Everything is asked of the hosts that take part; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent import wire

from . import faulty
from .errors import EncampError, UsageError
from .parallel import everywhere
from .sanitize import printable
from .session import Session
from .store import RunView

KERNEL = "D"
"""The process state of what hangs in the kernel, and may not be possible to end."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: when it was saved by the host's clock, and which hosts have it."""

    step: int
    time: float
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint as a host tells of it."""

    step: int
    time: float


@dataclass(frozen=True, slots=True)
class Told:
    """What one host answers to `checkpoints`."""

    path: str
    kind: str
    complete: tuple[Saved, ...]
    incomplete: tuple[int, ...]


@dataclass(frozen=True)
class Prospect:
    """A restart that has not happened yet."""

    run: str
    attempt: int
    """The next one."""
    ranks: int
    hosts: tuple[str, ...]
    state: str
    live: bool
    kind: str
    """task, script or module; empty where no host could tell."""
    path: str
    """Where checkpoints are looked for."""
    step: int | None
    """The step that all ranks have reached."""
    step_time: float | None
    """When, by the host's clock."""
    started: float
    """When the run began."""
    checkpoint: Checkpoint | None
    """What it goes on from; None: from the beginning, or from what the program itself knows."""
    chosen: bool
    """Whether somebody asked for this checkpoint, or for the beginning."""
    newer: tuple[int, ...]
    """Complete checkpoints that do not count any more then."""
    incomplete: tuple[int, ...]
    """Newer ones that were not written to their end."""
    complete: tuple[Checkpoint, ...]
    """All that it could go back to, the newest first."""
    stuck: tuple[tuple[int, str], ...]
    """Ranks that hang in the kernel, and their hosts."""
    faulty: tuple[tuple[str, str], ...]
    """Hosts with a GPU on which nothing should be started, and what is wrong with it."""
    notes: tuple[str, ...]

    @property
    def ours(self) -> bool:
        """Whether the built-in trainer runs: only of that it is known what it goes on from."""
        return self.kind == "task"

    @property
    def lost_steps(self) -> int | None:
        """How many steps are done again; None where that is not known."""
        if not self.ours or self.reached is None:
            return None
        return max(0, self.reached - (self.checkpoint.step if self.checkpoint else 0))

    @property
    def reached(self) -> int | None:
        """The furthest step that is given up: an attempt may fail before it is as far as its checkpoint."""
        return None if self.step is None else max((self.step, *self.newer))

    @property
    def lost_seconds(self) -> float | None:
        """How long ago the state was that training goes back to, at its last step."""
        if not self.ours or self.step_time is None:
            return None
        since = self.checkpoint.time if self.checkpoint else self.started
        until = self.step_time if self.reached == self.step else self.complete[0].time
        return max(0.0, until - since) if self.lost_steps else 0.0

    def sentences(self, now: float, leave_out: str = "leave it out with --without {}") -> list[str]:
        """The truth for people, most important first. `now` is by the hosts' clock.

        `leave_out` says how a host is left out, with its name for the braces.
        """
        from .. import formatting as fmt

        what = "stop and restart" if self.live else "restart"
        all_of = f"all {fmt.plural(self.ranks, 'rank')} on {fmt.listed(self.hosts)}"
        said = [f"Attempt {self.attempt}: {all_of} {what}."]
        said += [self._from(now), *self._lost()]
        if self.incomplete and self.ours:
            names = fmt.listed([f"step-{step}" for step in self.incomplete])
            said.append(f"Not written to the end, and not counted: {names}.")
        for rank, host in self.stuck:
            out = f": then {leave_out.format(host)}" if len(self.hosts) > 1 else ""
            said.append(f"Rank {rank} on {host} hangs in the kernel (D) and may not be possible to end{out}.")
        for host, what in self.faulty:
            out = f": {leave_out.format(host)}" if len(self.hosts) > 1 else ""
            said.append(f"{host} has a faulty GPU, and is refused{out}. {what}.")
        return [*said, *self.notes]

    def _from(self, now: float) -> str:
        from .. import formatting as fmt

        found = self.checkpoint
        if not self.ours:
            whose = "a program of yours" if self.kind else "a program that no host tells of"
            seen = f" In {self.path} the newest complete one is step-{found.step}." if found else ""
            return f"It runs {whose}: from which checkpoint it goes on is its own business.{seen}"
        if found is None:
            why = "as you asked" if self.chosen else f"there is no complete checkpoint in {self.path}"
            return f"It begins at step 1 again: {why}."
        ago = fmt.span(max(0.0, now - found.time))
        text = f"It goes on from step-{found.step}, complete on {fmt.listed(found.hosts)}, saved {ago} ago."
        if self.newer:
            names = fmt.listed([f"step-{step}" for step in self.newer])
            text += f" {names} {_is(self.newer)} set aside (kept as step-N.aside)."
        return text

    def _lost(self) -> list[str]:
        from .. import formatting as fmt

        steps, seconds = self.lost_steps, self.lost_seconds
        if steps is None:
            return []
        took = f" ({fmt.duration(seconds)})" if seconds else ""
        lost = f"{fmt.plural(steps, 'step')}{took}" if steps else "no step"
        if self.chosen or not self.live or not steps:
            return [f"Lost: {lost}, the run {'is' if self.live else 'was'} at step {self.reached}."]
        if self.state == "stalled":
            return [f"Lost: {lost}, the run is at step {self.step} and too stuck to save first."]
        return [f"Lost at most: {lost}. The ranks are asked to save at step {self.step} before they stop."]


async def look(
    run: RunView,
    sessions: Sequence[Session],
    *,
    without: Sequence[str] = (),
    from_step: int | None = None,
) -> Prospect:
    """Ask the hosts that take part. `from_step` is the checkpoint to go back to, 0 for none.

    Raises UsageError for a checkpoint that there is not, and where only the user's program knows its own.
    """
    hosts = tuple(name for name in run.hosts if name not in without)

    async def ask(session: Session) -> Told:
        reply = await session.request("checkpoints", {"run": run.id})
        try:
            return wire.from_json(Told, reply, "checkpoints")
        except wire.WireError as error:
            raise EncampError(f"its answer makes no sense: {error}") from error

    outcome = await everywhere([each for each in sessions if each.name in hosts and each.live], ask)
    told = outcome.done
    notes = [
        f"{name} does not tell its checkpoints: {printable(error.message)}"
        for name, error in outcome.failed.items()
    ]
    kind = next((each.kind for each in told.values() if each.kind in ("task", "script", "module")), "")
    path = printable(next((each.path for each in told.values()), "")[:500])
    complete = _complete(told)
    if from_step is not None:
        _refuse_from(run.id, from_step, kind, complete, path)
    checkpoint = complete.get(max(complete, default=-1) if from_step is None else from_step)
    newest = checkpoint.step if checkpoint else -1
    newer = () if from_step is None else tuple(step for step in sorted(complete) if step > from_step)
    unfinished = {step for each in told.values() for step in each.incomplete}
    ranks = run.ranks
    times = [view.sample.step_time for view in ranks.values() if view.sample.step_time is not None]
    return Prospect(
        run=run.id,
        attempt=run.attempt + 1,
        ranks=run.info.nproc_per_node * len(hosts),
        hosts=hosts,
        state=run.state,
        live=run.live,
        kind=kind,
        path=path,
        step=run.step,
        step_time=max(times, default=None),
        started=run.info.created,
        checkpoint=checkpoint,
        chosen=from_step is not None,
        newer=newer,
        incomplete=tuple(sorted(step for step in unfinished if step > newest and step not in complete)),
        complete=tuple(complete[step] for step in sorted(complete, reverse=True)),
        stuck=tuple((number, host) for number, host in stuck(run) if host in hosts),
        faulty=tuple(
            (view.name, what)
            for view, _ in run.parts
            if view.name in hosts
            for what in faulty.gpus(view, run.id)
        ),
        notes=tuple(notes),
    )


def stuck(run: RunView) -> list[tuple[int, str]]:
    """Ranks that hang in the kernel, and their hosts."""
    return [
        (number, part[0].name)
        for number, view in run.ranks.items()
        if view.sample.state == "running" and view.sample.process_state == KERNEL
        if (part := run.part_of(number))
    ]


def _is(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _complete(told: Mapping[str, Told]) -> dict[int, Checkpoint]:
    """All complete checkpoints by step."""
    found: dict[int, Checkpoint] = {}
    for host, each in told.items():
        for saved in each.complete:
            known = found.get(saved.step)
            holders = (*known.hosts, host) if known else (host,)
            found[saved.step] = Checkpoint(saved.step, saved.time, holders)
    return found


def _refuse_from(run: str, step: int, kind: str, complete: Mapping[int, Checkpoint], path: str) -> None:
    if not kind:
        raise EncampError(
            f"No host of {run} tells which checkpoints it has: --from {step} cannot be done safely.",
            "Restart it without --from, or see: encamp status",
        )
    if kind != "task":
        raise UsageError(
            f"{run} runs a program of yours: only that knows how to go on from step {step}.",
            "Restart it without --from, or launch it with the argument that it takes for that.",
        )
    if step and step not in complete:
        there = ", ".join(map(str, sorted(complete))) or "none"
        raise UsageError(
            f"There is no complete checkpoint of step {step} in {path}.",
            f"There are these: {there}; 0 begins anew",
        )
