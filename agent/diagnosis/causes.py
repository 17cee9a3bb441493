"""What one rank does while others wait for it, or while nothing goes on."""

from __future__ import annotations

import dataclasses
from typing import Tuple

from . import places
from .case import seen
from .evidence import Child, Rank
from .verdict import Finding

STATES = {"T": "is stopped", "t": "is stopped", "D": "is stuck in the kernel", "Z": "is dead"}
"""What the states of a process mean in which it does nothing."""


@dataclasses.dataclass(frozen=True)
class Cause:
    """`words` go on after the rank's name: `sleeps in train (train.py:12)`."""

    verdict: str
    confidence: float
    words: str
    findings: Tuple[Finding, ...]


def cause(rank: Rank) -> Cause:
    """Why `rank` does not come. `collective-missing` where it is simply elsewhere."""
    stack = places.main_stack(rank)
    where = places.spot(places.user_frame(stack))
    at = f" in {where}" if where else ""
    on_stack = (seen(rank, "stack", where or (places.spot(stack[0]) if stack else "no Python stack")),)
    idle = (rank.main_cpu_share or 0.0) < places.IDLE_SHARE
    if rank.gil_free is False and not (idle and places.in_storage(rank, stack)):
        more = seen(rank, "process", "no other Python thread gets a turn: the GIL is held")
        return Cause("gil-held", 0.9, f"holds the GIL in native code{at}", (*on_stack, more))
    if places.in_loader(stack):
        return _starved(rank, at, on_stack)
    if places.for_children(stack):
        return _parent(rank, at, on_stack)
    if places.in_lock(rank, stack):
        line = next((frame.source.strip() for frame in stack if frame.user_code and frame.source), "")
        words = f"waits for another thread{at}" + (f": {line}" if line else "")
        held = tuple(
            seen(
                rank, "stack", f"thread {thread.name or '?'}: {places.spot(places.user_frame(thread.frames))}"
            )
            for thread in rank.threads
            if not thread.main and places.user_frame(thread.frames)
        )
        return Cause("thread-deadlock", 0.85, words, (*on_stack, *held))
    if places.in_storage(rank, stack):
        return Cause("slow-storage", 0.8, f"reads or writes files{at} and gets no further", on_stack)
    call = places.call_of(stack)
    if call:  # the record does not have all calls: gloo's messages from one rank to another are not in it
        return Cause("collective-mismatch", 0.8, f"waits for others in {call}{at}", on_stack)
    doing = f"{_doing(rank, stack)}{at}"
    if doing == "is":  # in nobody's own code
        doing = f"is in {places.spot(stack[0])}" if stack else "shows no Python stack"
    return Cause("collective-missing", 0.9 if stack else 0.75, doing, on_stack)


def _parent(rank: Rank, at: str, findings: Tuple[Finding, ...]) -> Cause:
    """It waits for processes of its own. They run without the shim: only those it forked show a stack."""
    held = 0
    for child in rank.children:
        spot = places.spot(places.user_frame(child.frames))
        says = STATES.get(child.state) or (f"is in {spot}" if spot else "")
        says = says or f"uses {100 * (child.cpu_share or 0.0):.0f}% of a core, and shows no Python stack"
        findings = (*findings, seen(rank, "process", f"process {child.pid} {says}{_remedy(child)}"))
        held = held or child.pid * (child.state in ("T", "t"))
    if held:
        words = f"waits{at} for process {held}, which it has started itself and which is stopped"
        return Cause("stopped", 0.9, words, findings)
    advice = "started as ranks (nproc_per_node) instead, each of them shows its steps, collectives and stack"
    words = f"waits{at} for processes that it has started itself, and encamp cannot see what they do"
    return Cause("collective-missing", 0.6, words, (*findings, seen(rank, "process", advice)))


def _remedy(child: Child) -> str:
    """What lets a process of the rank's own go on, which `encamp signal` does not reach."""
    return f": on its host, kill -CONT {child.pid} lets it go on" if child.state == "T" else ""


def _starved(rank: Rank, at: str, on_stack: Tuple[Finding, ...]) -> Cause:
    findings = list(on_stack)
    words = f"waits for its DataLoader{at}"
    for child in rank.children:
        state = STATES.get(child.state, "")
        spot = places.spot(places.user_frame(places.in_worker(child.frames)))
        if state or spot:
            findings.append(
                seen(rank, "process", f"worker {child.pid} {state or 'is in ' + spot}{_remedy(child)}")
            )
            words += f"; worker {child.pid} {state or 'is in ' + spot}"
    if not rank.children:
        words = f"makes a batch{at} and does not get it done"
    return Cause("data-starved", 0.9, words, tuple(findings))


def _doing(rank: Rank, stack: Tuple[object, ...]) -> str:
    top = stack[0] if stack else None
    source = getattr(top, "source", "")
    if places.SLEEP_CHANNEL.search(rank.wait_channel) or places.SLEEP_LINE.search(source):
        return "sleeps"
    if (rank.main_cpu_share or 0.0) > places.IDLE_SHARE:
        return "computes"
    return "is"
