"""One attempt on several hosts, from nothing to running: everywhere or nowhere.

Every host prepares: it claims the attempt and says whether it would work. Only when all have, all start, and
are told that all have. What was begun is taken back when one refuses, fails, is lost, or the caller is
cancelled. A host that cannot be told any more takes it back by itself, within a minute.
"""

from __future__ import annotations

import asyncio
import secrets as random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent import wire

from . import group_watch
from .channel import REQUEST_SECONDS
from .compare import Plan
from .errors import EncampError, HostError, RequestRefused, Unreachable
from .parallel import Progress, Round, everywhere
from .placement import Rendezvous
from .runs import LAUNCH_SECONDS, read_answer
from .session import Session

T = TypeVar("T")

PREPARE_SECONDS = 120.0
"""How long the answer to a `prepare` may take: the host was asked before, so it knows its Pythons."""

PATIENCE_SECONDS = 15.0
"""How long a host that is lost on the way is waited for: less than what a prepared one waits for us."""

UNDO_SECONDS = 40.0
"""How long taking back may take on one host, before it is left to do so by itself."""


@dataclass(frozen=True)
class Order:
    """What is to be begun. `nodes` are in the order of their node ranks."""

    spec: wire.LaunchSpec
    attempt: int
    nodes: tuple[wire.Node, ...]
    rendezvous: Rendezvous
    actor: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    forced: str = ""
    """Why it is begun in spite of a blocker, in the user's words."""
    note: str = ""
    """What else the run's record is to say of the beginning of this attempt."""
    resume_step: int | None = None
    """The checkpoint to go back to; None is the newest, 0 none."""
    rendezvous_id: str = field(default_factory=lambda: random.token_hex(8))

    def placement(self, node_rank: int) -> wire.Placement:
        """What the host of that node rank is told of the others."""
        meeting = self.rendezvous
        return wire.Placement(self.nodes, node_rank, meeting.address, meeting.port, self.rendezvous_id)

    def params(self, node_rank: int) -> dict[str, Any]:
        """Of `plan`."""
        return {
            "spec": wire.to_json(self.spec),
            "attempt": self.attempt,
            "placement": wire.to_json(self.placement(node_rank)),
        }


class Bringup:
    """Carries out one order; `sessions` are in the order of the nodes.

    `check` looks at what all have prepared and raises EncampError to call it off: only by then is it known
    which torch a host really has, when packages were built for the run.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        order: Order,
        progress: Progress,
        check: Callable[[dict[str, Plan]], None] = lambda _: None,
    ) -> None:
        self._sessions = list(sessions)
        self._order = order
        self._progress = progress
        self._check = check
        self._ranks = {session.name: number for number, session in enumerate(sessions)}
        self._begun: set[str] = set()
        """Hosts that may have something of the attempt."""

    async def run(self) -> dict[str, Plan]:
        """Begin and watch the first moments. Raises HostsFailed, RunFailed, after nothing runs any more."""
        try:
            plans = await self._prepare_all()
            self._check(plans)
            await self._round(self._start)
            await self._round(self._confirm)
            await group_watch.started(self._sessions, self._order.spec.run, self._order.attempt)
        except (EncampError, asyncio.CancelledError) as error:
            interrupted = isinstance(error, asyncio.CancelledError)
            left = await self.undo(f"{self._order.actor}, who interrupted its start" if interrupted else "")
            if left and isinstance(error, EncampError):
                error.hint = f"{error.hint}\n  {left}".strip()
            raise
        return plans

    async def undo(self, actor: str = "") -> str:
        """Take back what was begun; returns what is to be said of hosts that could not be told, if any.

        `actor` is who does not want it any more; without one, a host was not able to.
        """

        async def abandon(session: Session) -> None:
            await self._abandon(session, actor)

        begun = [session for session in self._sessions if session.name in self._begun]
        taken = await everywhere(begun, abandon)
        if not taken.failed:
            return ""
        return (
            f"{', '.join(taken.failed)} could not be told; what was begun there ends by itself in a minute."
        )

    async def _prepare_all(self) -> dict[str, Plan]:
        """One certain host first, for whoever launches on it, then the others at once.

        Of two launches at one time on the same hosts one is refused by that host, holding nothing, and the
        other gets all: else each could hold what the other needs, and neither would start.
        """
        first = min(self._sessions, key=lambda session: session.view.host_id)
        others = [session for session in self._sessions if session is not first]
        plans = await self._round(self._prepare, [first]) | await self._round(self._prepare, others)
        return {session.name: plans[session.name] for session in self._sessions}

    async def _round(
        self,
        action: Callable[[Session], Coroutine[Any, Any, T]],
        sessions: Sequence[Session] | None = None,
    ) -> dict[str, T]:
        """All hosts at once. An action that was begun is carried through: half of it could not be undone."""
        asked = self._sessions if sessions is None else sessions
        task: asyncio.Task[Round[T]] = asyncio.ensure_future(everywhere(asked, action))
        try:
            return (await asyncio.shield(task)).results()
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
            task.cancel()
            raise

    async def _prepare(self, session: Session) -> Plan:
        self._progress(session.name, "preparing")
        self._begun.add(session.name)
        params = {
            **self._order.params(self._ranks[session.name]),
            "actor": self._order.actor,
            "secrets": dict(self._order.secrets),
            "forced": self._order.forced,
            "note": self._order.note,
        }
        if self._order.resume_step is not None:
            params["resume_step"] = self._order.resume_step
        try:
            answer = await session.request("prepare", params, PREPARE_SECONDS)
        except RequestRefused:
            self._begun.remove(session.name)
            raise
        self._progress(session.name, "prepared")
        return read_answer(Plan, answer)

    async def _start(self, session: Session) -> None:
        self._progress(session.name, "starting")
        await again(session, "start", self._which())
        self._progress(session.name, "started")

    async def _confirm(self, session: Session) -> None:
        try:
            await again(session, "confirm", self._which())
        except HostError:
            pass  # whether the host is still there is found out by watching it

    async def _abandon(self, session: Session, actor: str) -> None:
        # One that was asked and did not answer may have an attempt of somebody else's by that number.
        mine = {**self._which(), "rendezvous_id": self._order.rendezvous_id, "actor": actor}
        await again(session, "abandon", mine, UNDO_SECONDS)
        self._progress(session.name, "taken back")

    def _which(self) -> dict[str, Any]:
        return {"run": self._order.spec.run, "attempt": self._order.attempt}


async def dry_run(sessions: Sequence[Session], order: Order) -> dict[str, Plan]:
    """What each host would start. Raises HostsFailed."""

    async def plan(session: Session) -> Plan:
        params = order.params(next(n for n, node in enumerate(sessions) if node is session))
        return read_answer(Plan, await session.request("plan", params, LAUNCH_SECONDS))

    return (await everywhere(sessions, plan)).results()


async def again(
    session: Session, method: str, params: dict[str, Any], timeout: float = REQUEST_SECONDS
) -> dict[str, Any]:
    """Ask for what may be asked twice, and once more after a loss. Raises RequestRefused, HostError."""
    try:
        return await session.request(method, params, timeout)
    except Unreachable:
        await session.connected(PATIENCE_SECONDS)
        return await session.request(method, params, timeout)
