"""The hosts of a run as machines: which session reaches which of them, and why one cannot be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent import wire

from .errors import EncampError, HostError
from .session import Session
from .store import RunView


class OtherMachine(EncampError):
    """At a host's address answers another machine than the one that the run was launched on."""


class Forgotten(EncampError):
    """A host of a run knows nothing of it any more."""


@dataclass(frozen=True)
class Member:
    """One host of a run's newest attempt."""

    node: wire.Node
    name: str
    """What it is called here; the user who launched may have called it otherwise."""
    session: Session | None
    """The connection with it; None when there is none to that machine."""
    problem: EncampError | None
    """Why it cannot be asked, or cannot go on with the run; None when it can."""


def members(run: RunView, sessions: Sequence[Session]) -> list[Member]:
    """The hosts of a run by node rank. Each session should have connected, or failed to, before."""
    nodes = run.info.nodes
    if not nodes:
        view, _ = run.parts[0]
        nodes = (wire.Node(view.name, view.host_id, "", ""),)
    return [member_of(run.id, node, sessions) for node in nodes]


def leftovers(run: RunView, sessions: Sequence[Session]) -> list[Session]:
    """Live sessions with hosts on which an older attempt still goes on."""
    return [session for session in sessions if session.live and session.name in run.leftovers]


def member_of(run: str, node: wire.Node, sessions: Sequence[Session]) -> Member:
    """The host that a run calls `node`, and whether it can be asked."""
    same = [session for session in sessions if node.host_id and session.view.host_id == node.host_id]
    same += [session for session in sessions if session.name == node.name and session not in same]
    session = min(same, key=lambda session: not session.live, default=None)
    if session is None:
        return Member(
            node,
            node.name,
            None,
            HostError(
                f"{node.name} is not in your list of hosts.",
                f"Add it: encamp hosts add SSH-COMMAND --name {node.name}",
            ),
        )
    if not session.live:
        problem = HostError(session.view.message or f"{session.name} is not connected.", session.view.hint)
        return Member(node, session.name, session, problem)
    if node.host_id and session.view.host_id != node.host_id:
        return Member(
            node,
            session.name,
            None,
            OtherMachine(
                f"{session.name} was replaced: another machine answers at its address.",
                "What ran on the machine before cannot be reached under this name.",
            ),
        )
    if run not in session.view.runs:
        forgotten = Forgotten(f"{session.name} knows nothing of {run} any more.", "Its files there are gone.")
        return Member(node, session.name, session, forgotten)
    return Member(node, session.name, session, None)
