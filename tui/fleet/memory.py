"""What was last seen of a host, kept on this machine's disk: the runs to show when the host does not answer.

The host owns the truth. This is only good for saying "a run goes on there, as far as is known".
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from agent import wire

from . import paths
from .store import HostView, Store

ENDED_RUNS = 10
"""How many ended runs are remembered, the newest ones, besides all that were live."""

MAX_BYTES = 4 * 1024 * 1024


def remember(view: HostView) -> None:
    """Write down the runs of a host that has told us of all of them. A disk that refuses is no trouble."""
    runs = sorted(view.runs.values(), key=lambda run: run.info.started, reverse=True)
    ended = [run for run in runs if not run.live][:ENDED_RUNS]
    kept = [wire.to_json(run.info) for run in runs if run.live or run in ended]
    text = json.dumps({"host_id": view.host_id, "runs": kept})
    path = _file(view.name)
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(part).replace(path)
    except OSError:
        pass


def recall(store: Store, name: str) -> None:
    """Put what is remembered of a host that does not answer into the store, unless that knows better."""
    view = store.hosts[name]
    if view.runs:
        return
    try:
        with _file(name).open("rb") as file:
            fields = json.loads(file.read(MAX_BYTES))
        for entry in fields["runs"]:
            store.apply(name, wire.from_json(wire.Run, entry))
        if isinstance(fields.get("host_id"), str):
            store.remembered_as(name, fields["host_id"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing is remembered, or by another version


def rename(old: str, new: str) -> None:
    """Remember a host under its new name."""
    try:
        _file(old).replace(_file(new))
    except FileNotFoundError:
        forget(new)


def forget(name: str) -> None:
    """Forget a host that was removed, or one that had the name before."""
    _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    return paths.state_dir() / "seen" / f"{name}.json"
