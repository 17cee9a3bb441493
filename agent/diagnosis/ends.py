"""Rules about what is over or out of reach: hosts, ranks, processes, GPUs."""

from __future__ import annotations

from typing import List, Optional, Sequence

from . import crash, memory, xid
from .case import Case, is_, named, seen, verdict_on
from .evidence import Rank
from .verdict import Diagnosis, Finding

LOST = ("lost", "reset-required")
"""States of a GPU in which no program runs on it any more."""

XID_SECONDS = 300.0
"""How long before the end of a rank an error of its GPU may be the reason: a time-out lies between them."""

LEAD_SECONDS = 60.0
"""How long a rank may seem to go on after an error of its GPU: what was queued before is still told."""


def host_unreachable(case: Case) -> Optional[Diagnosis]:
    """Hosts that nobody can ask: whatever their ranks do, it is not known."""
    away = [host for host in case.evidence.hosts if not host.reachable]
    if not away:
        return None
    names = {host.name for host in away}
    ranks = [rank for rank in case.live if rank.host in names]
    who = " and ".join(sorted(names))
    findings = [
        Finding(None, "host", f"{host.name} has not answered for {host.silent_seconds:.0f} s")
        for host in away
    ]
    held = ""
    others = [rank for rank in case.stalled if rank.host not in names]
    if others:
        held = f"; {named(others)} made no progress for {case.since(others):.0f} s"
    return verdict_on(case, "host-unreachable", ranks, 0.9, f"{who} cannot be reached{held}", findings)


def ended(case: Case) -> Optional[Diagnosis]:
    """Ranks that are over: the first of them, when it should not be."""
    failures = crash.failed(case.evidence)
    left = crash.left_before(case.evidence, failures)
    if left:
        return _left(case, left, failures)
    if failures:
        return _failure(case, failures)
    early = [rank for rank in case.evidence.ranks if rank.state == "exited"]
    held = case.held() if early else []
    if held:
        findings = [seen(rank, "exit", f"ended with code {rank.exit_code}") for rank in early]
        wait = case.missed(early)
        text = f"{named(early)} ended while {is_(held)} waiting"
        return verdict_on(case, "exited-early", early, 0.95, text + (f" in {wait}" if wait else ""), findings)
    return None


def _left(case: Case, left: List[Rank], failures: List[Rank]) -> Diagnosis:
    """Ranks that ended well, as they believe, and by that broke the others."""
    findings = [seen(rank, "exit", f"ended with code {rank.exit_code}") for rank in left]
    findings += [seen(rank, "exit", f"{_said(rank)}, a consequence") for rank in failures]
    text = f"{named(left)} ended without an error before the others, which then failed: {_said(failures[0])}"
    return verdict_on(case, "exited-early", left, 0.9, text, findings)


def _said(rank: Rank) -> str:
    """Its error in one line; without one how it ended."""
    said = f"{rank.error_type}: {rank.error_message}".strip(": ").split("\n")[0][:300]
    return said or _end_words(rank)


def _memory(case: Case, rank: Rank) -> str:
    host = case.hosts.get(rank.host)
    return memory.words(rank, None if host is None else host.memory_limit_bytes)


def _failure(case: Case, failures: List[Rank]) -> Diagnosis:
    first = failures[0]
    kills = case.hosts[first.host].oom_kills if first.host in case.hosts else 0
    said = _said(first)
    findings = [seen(first, "exit", said)]
    if first.last_words:
        findings.append(seen(first, "log", first.last_words))
    if first.gpu is not None and first.gpu.xid not in (None, xid.CONSEQUENCE):
        findings.append(seen(first, "gpu", _gpu(case, first)))
    findings += [
        seen(rank, "exit", f"{_end_words(rank)}, a consequence")
        for rank in failures[1:]
        if crash.is_consequence(rank)
    ]
    who = named([first])
    if crash.out_of_memory(first, kills):
        if kills:
            findings.append(Finding(None, "memory", f"the kernel killed {kills} for want of memory"))
        grew = _memory(case, first)
        if grew:
            findings.insert(0, seen(first, "memory", f"{who} {grew}"))
        how = f"it {grew}" if grew and not first.error_type else said
        return verdict_on(case, "out-of-memory", [first], 0.95, f"{who} ran out of memory: {how}", findings)
    broken = [rank for rank in failures if _broke_it(rank)]
    if broken:
        return _faulty(case, broken, [finding for finding in findings if finding.signal == "exit"])
    if crash.lost_worker(first):
        return verdict_on(case, "data-starved", [first], 0.95, f"{who} lost its data: {said}", findings)
    if first.state == "lost" or (first.exit_code is not None and first.exit_code < 0):
        why = f": {first.last_words}" if first.last_words else ""
        return verdict_on(case, "dead", [first], 0.95, f"{who} {_end_words(first)}{why}", findings)
    return verdict_on(case, "exited-early", [first], 0.95, f"{who} failed first: {said}", findings)


def _end_words(rank: Rank) -> str:
    code = rank.exit_code
    if code is None:
        return "is gone without a word, as after SIGKILL or os._exit"
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def zombie(case: Case) -> Optional[Diagnosis]:
    """Ranks that are dead and wait for their parent to notice."""
    dead = [rank for rank in case.running if rank.process_state in ("Z", "X")]
    if not dead:
        return None
    findings = [
        seen(rank, "process", "its process is dead, and its launcher has not noticed") for rank in dead
    ]
    kills = sum(case.hosts[rank.host].oom_kills for rank in dead if rank.host in case.hosts)
    if kills:
        findings += [
            seen(rank, "memory", f"{named([rank])} {_memory(case, rank)}") for rank in dead if rank.memory
        ]
        return verdict_on(
            case, "out-of-memory", dead, 0.8, f"{named(dead)} was killed for want of memory", findings
        )
    return verdict_on(case, "dead", dead, 0.95, f"{is_(dead)} dead", findings)


def gpu_fault(case: Case) -> Optional[Diagnosis]:
    """GPUs that the driver has lost or given up, or of which it has reported an error."""
    broken = [
        rank
        for rank in case.running
        if rank.gpu is not None
        and (rank.gpu.state in (*LOST, "hung") or (rank in case.stalled and _held_it_up(case, rank)))
    ]
    return _faulty(case, broken) if broken else None


def _held_it_up(case: Case, rank: Rank) -> bool:
    """Whether the error of its GPU may be why the rank is stalled: it came when the rank stopped to go on."""
    gpu = rank.gpu
    if gpu is None or gpu.xid in (None, xid.CONSEQUENCE):
        return False
    last = case.evidence.time + case.offset(rank) - (rank.step_age or 0.0)
    return gpu.xid_time is None or gpu.xid_time > last - LEAD_SECONDS


def _faulty(case: Case, broken: List[Rank], more: Sequence[Finding] = ()) -> Diagnosis:
    findings = [seen(rank, "gpu", _gpu(case, rank)) for rank in broken]
    sentence = f"the GPU of {is_(broken)} faulty: {findings[0].text}"
    return verdict_on(case, "gpu-fault", broken, 0.95, sentence, [*findings, *more])


def _gpu(case: Case, rank: Rank) -> str:
    """`GPU 3 is lost; XID 79: the GPU has fallen off the bus, 40 s ago` for people."""
    gpu = rank.gpu
    assert gpu is not None
    state = {"lost": " is lost", "reset-required": " must be reset", "hung": ": its driver hangs"}
    text = f"GPU {gpu.index}{state.get(gpu.state, '')}"
    if gpu.xid is None:
        return text
    text += f"{'; ' if gpu.state in state else ': '}{xid.words(gpu.xid)}"
    age = None if gpu.xid_time is None else case.evidence.time - gpu.xid_time + case.offset(rank)
    return text if age is None or age < 0 else f"{text}, {age:.0f} s ago"


def _broke_it(rank: Rank) -> bool:
    """Whether its GPU is why it ended: it is lost, or had an error of its own not long before."""
    gpu = rank.gpu
    if gpu is None:
        return False
    if gpu.state in LOST:
        return True
    if gpu.xid is None or not xid.is_hardware(gpu.xid):
        return False
    return rank.ended is None or gpu.xid_time is None or gpu.xid_time > rank.ended - XID_SECONDS
