"""Rules about ranks that make no progress: whose fault it is."""

from __future__ import annotations

from typing import List, Optional

from . import places, waiting
from .case import PHASE_SECONDS, Case, is_, named, numbers, seen, verdict_on
from .causes import cause
from .evidence import Rank
from .verdict import Diagnosis, Finding

SPIN_UTILIZATION, SPIN_POWER = 90.0, 0.45
"""A GPU that is busy by its own account at a fraction of its power spins in a collective."""

SHY_SECONDS = 60.0
"""How long ranks that show no steps, or no stacks as at their end, may do what nobody waits for."""


def stopped(case: Case) -> Optional[Diagnosis]:
    """Ranks that somebody stopped by a signal, or holds in a debugger."""
    held = [rank for rank in case.stalled if rank.process_state in ("T", "t")]
    if not held:
        return None
    how = "stopped by a signal (SIGSTOP)" if held[0].process_state == "T" else "held by a debugger"
    findings = [seen(rank, "process", _held(case, rank)) for rank in held]
    wait = case.missed(held)
    more = f"; the others wait in {wait}" if wait else ""
    return verdict_on(case, "stopped", held, 0.99, f"{is_(held)} {how}{more}", findings)


def _held(case: Case, rank: Rank) -> str:
    """Where it is, and what lets it go on."""
    if rank.process_state == "t":
        return f"process {rank.pid} is held (t): it goes on when the debugger lets it"
    way = f"encamp signal {case.evidence.run} --rank {rank.rank} --signal CONT"
    return f"process {rank.pid} is stopped (T): SIGCONT lets it go on, by: {way}"


def in_kernel(case: Case) -> Optional[Diagnosis]:
    """Ranks that no signal reaches: they wait in the kernel for a disk, a network file system, a driver."""
    held = [rank for rank in case.stalled if rank.process_state == "D" and not case.busy(rank)]
    if not held:
        return None
    findings = [
        seen(rank, "process", f"in the kernel, in {rank.wait_channel or 'a place it hides'}") for rank in held
    ]
    if places.in_storage(held[0], places.main_stack(held[0])):
        where = places.spot(places.user_frame(places.main_stack(held[0])))
        return verdict_on(
            case, "slow-storage", held, 0.85, f"{named(held)} waits for the disk in {where}", findings
        )
    return verdict_on(case, "kernel-wait", held, 0.9, f"{is_(held)} stuck {findings[0].text}", findings)


def mismatched(case: Case) -> Optional[Diagnosis]:
    """Members of a group that called different collectives, or with different sizes."""
    found = waiting.mismatch(case.stalled)
    if found is None:
        return None
    fewest = min(len(who) for who in found.calls.values())
    odd = [who for who in found.calls.values() if len(who) == fewest]
    culprits = sorted({number for who in odd for number in who})
    ranks = [case.by_number[number] for number in culprits]
    findings = [
        Finding(
            who[0],
            "collective",
            f"number {found.sequence}: {call} on {named([case.by_number[n] for n in who])}",
        )
        for call, who in found.calls.items()
    ]
    calls = " and ".join(f"{call} (rank {numbers(who)})" for call, who in found.calls.items())
    text = f"as number {found.sequence} the ranks called different things: {calls}"
    return verdict_on(case, "collective-mismatch", ranks, 0.9, text, findings)


def waited_for(case: Case) -> Optional[Diagnosis]:
    """Ranks for which others wait in a collective, and what these do instead."""
    blamed = case.blamed()
    if not blamed:
        return None
    working = [rank for rank in blamed if case.busy(rank)]
    if working:
        return _working(case, working)
    causes = [cause(rank) for rank in blamed]
    surest = max(causes, key=lambda found: found.confidence)
    culprits = [rank for rank, found in zip(blamed, causes) if found.verdict == surest.verdict]
    wait = case.missed(culprits)
    findings = [*surest.findings]
    others = [case.by_number[number] for number in sorted(case.waiting() - {rank.rank for rank in blamed})]
    if others:
        findings.append(
            seen(
                others[0],
                "collective",
                f"{named(others)} wait{'s' * (len(others) == 1)} in {wait or 'a collective'}",
            )
        )
    text = f"{named(culprits)} {surest.words}"
    if wait and (", " in surest.words or "; " in surest.words):  # they end in what another process does
        text += f"; the {'rank itself' if len(culprits) == 1 else 'ranks themselves'} never called {wait}"
    else:
        text += f" and never called {wait}" if wait else ", and the others wait for it"
    return verdict_on(case, surest.verdict, culprits, surest.confidence, text, findings)


def _working(case: Case, working: List[Rank]) -> Diagnosis:
    phase = next((word for word in map(places.phase, working) if word), "")
    where = places.spot(places.user_frame(places.main_stack(working[0])))
    what = f"slow phase: {phase}" if phase else "a long stretch of work"
    text = f"{what}; {is_(working)} busy" + (f" in {where}" if where else "")
    if places.for_children(places.main_stack(working[0])):
        text += ", by processes started there: encamp cannot see what they do"
    return verdict_on(case, "healthy", [], 0.7, text)


def all_wait(case: Case) -> Optional[Diagnosis]:
    """All ranks are in the same collective, and it does not end: what connects them does not work."""
    waits = case.waiting()
    if not waits or not {rank.rank for rank in case.stalled} <= waits:
        return None
    knot = waiting.cycle(case.waits)
    if knot:
        ranks = [case.by_number[number] for number in sorted(knot)]
        words = [
            seen(case.by_number[w.rank], "collective", f"waits in {w.collective}")
            for w in case.waits
            if w.rank in knot
        ]
        return verdict_on(
            case,
            "collective-mismatch",
            ranks,
            0.75,
            f"{named(ranks)} wait for each other in different collectives",
            words,
        )
    wait = case.waits[0].collective if case.waits else "a collective"
    hidden = [r for r in case.running if r.rank not in waits and not (r.recorded or places.main_stack(r))]
    if hidden:  # as on a host that does not tell: the reason may be there
        text = f"{named(case.stalled)} wait in {wait}, and nothing is known of what {is_(hidden)} doing"
        return verdict_on(case, "unknown", [], 0.3, text, [Finding(None, "collective", text)])
    spinning = [rank for rank in case.stalled if _spins(rank)]
    stuck = [(host, socket) for host in case.evidence.hosts for socket in host.stuck_sockets]
    findings = [Finding(None, "host", f"{host.name}: {socket} is not acknowledged") for host, socket in stuck]
    if stuck or len(case.evidence.hosts) > 1:
        sure = 0.9 if stuck else 0.6
        findings.append(Finding(None, "collective", f"all ranks are in {wait}, and it does not end"))
        return verdict_on(
            case, "network", [], sure, f"the hosts have lost each other: all ranks wait in {wait}", findings
        )
    if spinning:
        findings = [seen(rank, "gpu", _power(rank)) for rank in spinning]
        return verdict_on(
            case, "gpu-spin", spinning, 0.7, f"the GPUs of {named(spinning)} spin in {wait}", findings
        )
    if not case.recorded():
        return None
    text = f"all ranks are in {wait}, and it does not end"
    return verdict_on(case, "unknown", [], 0.3, text, [Finding(None, "collective", text)])


def _spins(rank: Rank) -> bool:
    gpu = rank.gpu
    if gpu is None or gpu.utilization_percent is None or gpu.power_watts is None or not gpu.power_limit_watts:
        return False
    return (
        gpu.utilization_percent >= SPIN_UTILIZATION and gpu.power_watts < SPIN_POWER * gpu.power_limit_watts
    )


def _power(rank: Rank) -> str:
    gpu = rank.gpu
    assert gpu is not None
    power = f"{gpu.power_watts:.0f} of {gpu.power_limit_watts:.0f} W"
    return f"GPU {gpu.index}: {gpu.utilization_percent:.0f} % busy at {power}"


def alone(case: Case) -> Optional[Diagnosis]:
    """Nobody waits for another: each stalled rank has a cause of its own, or none that can be told."""
    idle = [rank for rank in case.stalled if not case.busy(rank, alone=True)]
    if not idle:
        return _working(case, case.stalled)
    causes = [(rank, cause(rank)) for rank in idle]
    surest = max((found for _, found in causes), key=lambda found: found.confidence)
    if surest.verdict == "collective-missing":  # elsewhere, but there is no collective that they could miss
        findings = [finding for _, found in causes for finding in found.findings]
        what = f"{named([idle[0]])} {causes[0][1].words}"
        limit = 0.0 if case.evidence.allowed_seconds else PHASE_SECONDS
        if not limit and not any(rank.step is not None and places.main_stack(rank) for rank in idle):
            limit = max(SHY_SECONDS, 2 * case.allowed)
        if case.since(idle) <= limit:
            text = f"nothing is known of the progress of this run yet; {what}"
            return verdict_on(case, "healthy", [], 0.3, text, findings)
        text = f"no progress for {case.since(idle):.0f} s: {what}"
        return verdict_on(case, "unknown", idle, 0.3, text, findings)
    culprits = [rank for rank, found in causes if found.verdict == surest.verdict]
    text = f"{named(culprits)} {surest.words}"
    return verdict_on(case, surest.verdict, culprits, surest.confidence * 0.9, text, surest.findings)
