"""What this host knows about an attempt's ranks when somebody asks why nothing goes on, or at an alarm.

The evidence of an alarm is written into the attempt's folder, as `stall-1.json` and so on, before anybody can
act on it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import ending, files, prepare, signals, telemetry, values, wire
from .attempt import Attempt, Condition
from .diagnosis import Diagnosis, crash, diagnose, xid
from .diagnosis.evidence import Evidence, Gpu, Host, Rank
from .signals import ras, words
from .signals.look import WINDOW_SECONDS, Known

MAX_BYTES = wire.MAX_LINE - 4096
"""Bytes of JSON that evidence may take: it is one line of the wire."""

MAX_RECORDS = 20
"""Alarms of an attempt whose evidence is kept."""


RHYTHM = "rhythm.json"

MAX_USUAL_SECONDS = 3600.0

SOON_SECONDS = 60.0
"""So long after the end of an attempt what is reported of a GPU may still be its doing."""


def evidence(
    attempt: Attempt, known: Sequence[Known], gpus: Sequence[wire.GpuSample], allowed: float
) -> Evidence:
    """Look at the ranks of an attempt on this host. Blocks for a second and a bit: call it in a thread."""
    placement = attempt.placement()
    name = placement.nodes[placement.node_rank].name if placement is not None else ""
    kept = telemetry.kept(attempt.dir)
    by_index = {gpu.index: gpu for gpu in _gpus(attempt.condition(), gpus, kept)}
    cwd = attempt.resolved().get("cwd")
    with ThreadPoolExecutor(max_workers=1) as pool:
        nccl = pool.submit(ras.status, [one.sample.pid for one in known if _on_gpu(one)])
        ranks, stuck = signals.gather(attempt.dir, name, known, by_index, cwd if isinstance(cwd, str) else "")
        told = nccl.result()
    ranks = tuple(
        rank
        if rank.state in ("starting", "running")
        else dataclasses.replace(rank, memory=telemetry.memory_of(kept, rank.rank))
        for rank in ranks
    )
    host = Host(
        name,
        True,
        memory_limit_bytes=telemetry.memory_limit(kept),
        oom_kills=_oom_kills(attempt),
        stuck_sockets=stuck,
        nccl_ras=told,
    )
    world_size = attempt.resolved().get("world_size")
    return fitting(
        Evidence(
            run=attempt.run,
            attempt=attempt.number,
            time=time.time(),
            world_size=world_size if isinstance(world_size, int) else len(ranks),
            window_seconds=WINDOW_SECONDS,
            ranks=ranks,
            hosts=(host,),
            allowed_seconds=allowed,
        )
    )


def failing(attempt: Attempt, samples: Sequence[wire.RankSample]) -> str:
    """Which rank has failed first and how, while the launcher still ends the others; empty while none has.

    What a rank writes at its end is there before its process is over, and that before the launcher notices.
    """
    if not any(_has_failed(attempt, sample) for sample in samples):
        return ""
    ranks = tuple(_at_its_end(attempt, sample) for sample in samples)
    host = Host("", True, oom_kills=_oom_kills(attempt))
    found = Evidence(attempt.run, attempt.number, time.time(), len(ranks), 0.0, ranks, (host,))
    said, first = diagnose(found), crash.first(found)
    own = [rank for rank in crash.failed(found) if not crash.is_consequence(rank)]
    if len(own) > 1 and any(rank.ended is None for rank in own):
        return ""  # of ranks that were killed nothing tells yet which of them the launcher has killed
    sure = first is not None and (bool(own) or said.culprits != (first.rank,))
    return said.sentence if sure else ""


def _rank_file(attempt: Attempt, rank: int, name: str) -> str:
    return os.path.join(attempt.dir, f"rank{rank}", name)


def _has_failed(attempt: Attempt, sample: wire.RankSample) -> bool:
    """Asked at each tick of each rank: of one that runs well a look for one file is all."""
    if sample.state == "running":
        return os.path.exists(_rank_file(attempt, sample.rank, "error.json"))
    return bool(sample.exit_code) or sample.state == "lost"


def _at_its_end(attempt: Attempt, sample: wire.RankSample) -> Rank:
    """A rank as what it has left behind tells; one that runs well among others as it is."""
    state, code = sample.state, sample.exit_code
    path = _rank_file(attempt, sample.rank, "error.json")
    error = (files.read_json(path) or {}) if _has_failed(attempt, sample) else {}
    if error:
        state, code = "exited", code or 1
    kind, message = (str(error.get(name, ""))[: wire.MAX_TEXT] for name in ("type", "message"))
    ended = files.changed_at(_rank_file(attempt, sample.rank, "exit.json")) or files.changed_at(path)
    return Rank(
        sample.rank,
        "",
        state,
        exit_code=code,
        ended=ended or None,
        error_type=kind,
        error_message=message,
        last_words=words.last_words(f"{os.path.dirname(path)}.log") if state == "lost" else "",
    )


def record(attempt: Attempt, found: Evidence, diagnosis: Diagnosis) -> None:
    """Write down an alarm and what it rests on, or its end. On a full disk as much of it as there is room."""
    if not diagnosis.alarming:
        if attempt.condition().state != "running":
            return  # it is being stopped, or has ended: that is told by others
        prepare.add_event(attempt, "resumed", "encamp", diagnosis.sentence)
        return
    prepare.add_event(attempt, "stalled", "encamp", f"{diagnosis.verdict}: {diagnosis.sentence}")
    for number in range(1, MAX_RECORDS + 1):
        path = os.path.join(attempt.dir, f"stall-{number}.json")
        if os.path.exists(path):
            continue
        try:
            files.write_json(path, {"diagnosis": wire.to_json(diagnosis), "evidence": wire.to_json(found)})
        except OSError:
            pass
        return


def keep_rhythm(attempt: Attempt, usual: float) -> None:
    """Write down the longest pause, in seconds, that is usual in an attempt."""
    try:
        files.write_json(os.path.join(attempt.dir, RHYTHM), {"usual": usual})
    except OSError:
        pass  # a full disk, or it has been removed: it is learned again


def kept_rhythm(attempt: Attempt) -> float:
    """What `keep_rhythm` has written; 0 where that is nothing."""
    usual = values.number((files.read_json(os.path.join(attempt.dir, RHYTHM)) or {}).get("usual"), 0.0)
    return usual if 0 < usual < MAX_USUAL_SECONDS else 0.0


def fitting(found: Evidence) -> Evidence:
    """`found` in a size that goes over the wire: the least telling is left out first."""
    for cut in (_short_tracebacks, _only_telling_threads, _only_main_threads, _short_records, _short_stacks):
        if len(json.dumps(wire.to_json(found))) <= MAX_BYTES:
            break
        found = dataclasses.replace(found, ranks=tuple(cut(rank) for rank in found.ranks))
    return found


def _short_tracebacks(rank: Rank) -> Rank:
    return dataclasses.replace(rank, traceback=rank.traceback[-1000:])


def _only_telling_threads(rank: Rank) -> Rank:
    threads = [t for t in rank.threads if t.main or any(frame.user_code for frame in t.frames)]
    return dataclasses.replace(rank, threads=tuple(threads[:8]))


def _only_main_threads(rank: Rank) -> Rank:
    return dataclasses.replace(rank, threads=tuple(t for t in rank.threads if t.main))


def _short_records(rank: Rank) -> Rank:
    groups = tuple(dataclasses.replace(group, recent=group.recent[-4:]) for group in rank.groups[:8])
    return dataclasses.replace(rank, groups=groups, children=rank.children[:8])


def _short_stacks(rank: Rank) -> Rank:
    threads = tuple(dataclasses.replace(t, frames=t.frames[:12]) for t in rank.threads)
    return dataclasses.replace(
        rank,
        threads=threads,
        earlier=rank.earlier[:1],
        error_message=rank.error_message[:200],
        traceback="",
        children=(),
    )


def _oom_kills(attempt: Attempt) -> int:
    before = (files.read_json(os.path.join(attempt.dir, "supervisor.json")) or {}).get("oom_kills")
    now = ending.oom_kills()
    return max(0, now - before) if now is not None and isinstance(before, int) else 0


def _on_gpu(one: Known) -> bool:
    """Whether it is worth to look for its NCCL. The environment of what hangs in the kernel may hang too."""
    sample = one.sample
    known = sample.gpu is not None and sample.pid is not None
    return known and sample.state == "running" and sample.process_state != "D"


def _gpus(when: Condition, live: Sequence[wire.GpuSample], kept: Mapping[str, object]) -> List[Gpu]:
    """The GPUs during an attempt; of one that is over for long only what went wrong with them in its time."""
    until = math.inf if when.ended is None else when.ended + SOON_SECONDS
    over = time.time() > until
    seen: Dict[int, List[Tuple[float, int]]] = {gpu.index: [] for gpu in live if not over}
    for index, at, code in [
        *((gpu.index, each.time, each.code) for gpu in live for each in gpu.xids),
        *telemetry.xids_of(kept),
    ]:
        if when.started <= at <= until and (at, code) not in seen.get(index, ()):
            seen.setdefault(index, []).append((at, code))
    now = {gpu.index: gpu for gpu in live if not over}
    return [_gpu(index, now.get(index), xids) for index, xids in seen.items()]


def _gpu(index: int, sample: Optional[wire.GpuSample], seen: Sequence[Tuple[float, int]]) -> Gpu:
    at, code = xid.worst(seen) or (None, None)
    found = Gpu(index, "ok", xid=code, xid_time=at)
    if sample is None:
        return found
    return dataclasses.replace(
        found,
        state=sample.state,
        utilization_percent=sample.utilization_percent,
        power_watts=sample.power_watts,
        power_limit_watts=sample.power_limit_watts,
    )
