"""GPUs of a run on which it should not be started again: lost ones, and those with an XID that stays."""

from __future__ import annotations

from agent.diagnosis import xid

from .store import HostView

LOST = {"lost": "has fallen off the bus", "reset-required": "must be reset"}


def gpus(view: HostView, run: str) -> list[str]:
    """What is wrong with the GPUs that the run's ranks have on that host, as `GPU 3: XID 48: ...`.

    Only what was reported since its current attempt began counts: a GPU may have been reset before that.
    """
    node = view.runs.get(run)
    if node is None or view.sample is None:
        return []
    used = {rank.sample.gpu for rank in node.ranks.values()}
    found = []
    for gpu in view.sample.gpu.gpus:
        fatal = [each.code for each in gpu.xids if each.time >= node.info.started and xid.is_fatal(each.code)]
        if gpu.index in used and fatal:
            found.append(f"GPU {gpu.index}: {xid.words(fatal[-1])}")
        elif gpu.index in used and gpu.state in LOST:
            found.append(f"GPU {gpu.index} {LOST[gpu.state]}")
    return found
