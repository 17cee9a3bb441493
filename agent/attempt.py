"""One attempt of a run as its folder has it: what it was to be, what it is, and how it ended.

The state is derived from the files in the folder and from which processes live; nothing is kept anywhere
else. Whatever is missing or half-written is read as "not yet" or "not known", never as an error.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from . import files, paths, process, reap, wire

START_SECONDS = 30.0
"""How long a supervisor may take to start its launcher; an attempt without one for longer never began."""

PREPARED_SECONDS = 45.0
"""How long a prepared attempt waits to be started: all hosts of a run prepare before the first one starts."""


class Condition(NamedTuple):
    """Where an attempt stands."""

    state: str
    reason: str
    started: float
    """Host's wall clock."""
    ended: Optional[float] = None
    exit_code: Optional[int] = None
    unwatched: bool = False
    """Its processes live and its supervisor does not: see `adopt`."""

    @property
    def over(self) -> bool:
        """Whether nothing of it can change any more."""
        return self.state in wire.END_STATES


class Attempt:
    """One attempt as its folder tells it. What cannot change any more is read only once."""

    def __init__(self, home: str, run: str, number: int) -> None:
        self.home = home
        self.run = run
        self.number = number
        self.dir = paths.attempt_dir(home, run, number)
        self._spec: Dict[str, Any] = {}
        self._launch_spec: Optional[wire.LaunchSpec] = None
        self._placement: Optional[wire.Placement] = None
        self._registered: Dict[int, Tuple[int, int]] = {}
        self._end: Optional[Condition] = None

    def spec(self) -> Dict[str, Any]:
        """What is in spec.json; empty while it cannot be read."""
        if not self._spec:
            self._spec = files.read_json(self._path("spec.json")) or {}
        return self._spec

    def launch_spec(self) -> Optional[wire.LaunchSpec]:
        """The spec that it was launched with, or None when it cannot be read."""
        if self._launch_spec is None:
            try:
                self._launch_spec = wire.from_json(wire.LaunchSpec, self.spec())
            except wire.WireError:
                return None
        return self._launch_spec

    def placement(self) -> Optional[wire.Placement]:
        """All hosts of the run and which of them is this one; None for a run on this host alone."""
        if self._placement is None and self.spec().get("placement") is not None:
            try:
                found = wire.from_json(wire.Placement, self.spec()["placement"])
            except wire.WireError:
                return None
            self._placement = found if 0 <= found.node_rank < len(found.nodes) else None
        return self._placement

    def resolved(self) -> Dict[str, Any]:
        """What the spec meant on this host: argv, env, cwd, python, nproc_per_node, world_size, port."""
        resolved = self.spec().get("resolved")
        return resolved if isinstance(resolved, dict) else {}

    def nproc(self) -> int:
        """How many ranks it has on this host; 0 while that is not known."""
        value = self.resolved().get("nproc_per_node")
        return value if isinstance(value, int) and 0 < value <= wire.MAX_ITEMS else 0

    def expected(self) -> range:
        """The global ranks that it has on this host; empty while that is not known."""
        nproc, placement = self.nproc(), self.placement()
        first = 0 if placement is None else placement.node_rank * nproc
        return range(first, first + nproc)

    def gpus(self) -> Set[int]:
        """Indices of the host's GPUs that its ranks use."""
        found = self.resolved().get("gpus")
        return {index for index in found if isinstance(index, int)} if isinstance(found, list) else set()

    def actor(self) -> str:
        """Who launched or restarted it."""
        return str(self.spec().get("actor") or "somebody")

    def prepared(self) -> bool:
        """Whether it was prepared and has not been started, be it that it never will be."""
        return os.path.exists(self._path("prepared.json"))

    def was_supervised(self) -> bool:
        """Whether a supervisor has begun with it."""
        return os.path.exists(self._path("supervisor.json"))

    def supervisor(self) -> Optional[Tuple[int, int]]:
        """(pid, start time) of its supervisor, while that lives."""
        values = files.read_json(self._path("supervisor.json")) or {}
        identity = reap.identity_in(values)
        if identity is None or values.get("boot_id") != process.boot_id():
            return None
        return identity if process.alive(*identity) else None

    def ranks(self) -> Dict[int, Tuple[int, int]]:
        """rank -> (pid, start time) of the ranks that have said who they are, ended or not."""
        for rank in self.expected():
            if rank not in self._registered:
                identity = reap.read_identity(self._path(f"rank{rank}", "rank.json"))
                if identity is not None:
                    self._registered[rank] = identity
        return self._registered

    def streams(self) -> Dict[str, int]:
        """Bytes of each of its logs."""
        sizes = {}
        for name in ["launcher", *(f"rank{rank}" for rank in self.expected())]:
            try:
                sizes[name] = os.stat(self._path(name + ".log")).st_size
            except OSError:
                pass  # it has not said anything yet
        return sizes

    def reaped(self) -> List[int]:
        """The processes that had to be ended at its end."""
        found = (files.read_json(self._path("exit.json")) or {}).get("reaped")
        return [pid for pid in found if isinstance(pid, int)] if isinstance(found, list) else []

    def condition(self) -> Condition:
        """Where it stands now."""
        if self._end is None:
            found = self._recorded_end()
            if found is None:
                found = self._living()
            if found is None:
                # The supervisor writes the end and goes: it may have done so between the two looks.
                found = self._recorded_end() or self._lost()
            if not found.over:
                return found
            self._end = found
        return self._end

    def _recorded_end(self) -> Optional[Condition]:
        values = files.read_json(self._path("exit.json"))
        if values is None:
            return None
        code, ended = values.get("code"), values.get("time")
        code = code if isinstance(code, int) else None
        stopped = os.path.exists(self._path("stop.json"))
        state = "finished" if code == 0 else "stopped" if stopped else "failed"
        at = float(ended) if isinstance(ended, (int, float)) else self._last_sign()
        return Condition(state, str(values.get("reason") or "")[: wire.MAX_TEXT], self._started(), at, code)

    def _living(self) -> Optional[Condition]:
        watched = self.supervisor() is not None
        beginning = not watched and self._is_beginning()
        if not watched and not beginning and not self._lives():
            return None
        stopping = os.path.exists(self._path("stop.json"))
        registered = len(self.ranks()) >= max(1, self.nproc())
        state = "stopping" if stopping else "running" if registered else "starting"
        return Condition(state, "", self._started(), unwatched=not watched and not beginning)

    def _is_beginning(self) -> bool:
        """Whether its first supervisor has not had the time to say who it is, or is still to be started."""
        if self.was_supervised():
            return False
        prepared = files.read_json(self._path("prepared.json"))
        if prepared is not None:
            # The clock that nobody sets: a host's wall clock may jump by hours when it comes up.
            at = prepared.get("monotonic")
            if prepared.get("boot_id") != process.boot_id() or not isinstance(at, (int, float)):
                return False
            return 0 <= time.monotonic() - at < PREPARED_SECONDS
        return time.time() - self._created() < START_SECONDS

    def _lives(self) -> bool:
        """Whether the launcher or a rank lives."""
        launcher = reap.read_identity(self._path("launcher.json"))
        if launcher is not None and process.alive(*launcher):
            return True
        return any(process.alive(*identity) for identity in self.ranks().values())

    def _lost(self) -> Condition:
        values = files.read_json(self._path("supervisor.json"))
        last = values or files.read_json(self._path("prepared.json")) or {}
        if last and last.get("boot_id") != process.boot_id():
            booted = process.boot_time()
            when = time.strftime(" at %Y-%m-%d %H:%M", time.localtime(booted)) if booted else ""
            reason = f"the host was rebooted{when}"
        elif values is None and self.prepared():
            reason = (
                "it was prepared and never started: another host was not ready, "
                "or the encamp that launched it was lost"
            )
        elif values is None:
            reason = "it was never started: its supervisor did not come up"
        else:
            reason = (
                "its processes disappeared: they were killed from outside, or the container was restarted"
            )
        state = "stopped" if os.path.exists(self._path("stop.json")) else "failed"
        return Condition(state, reason, self._started(), self._last_sign())

    def _started(self) -> float:
        values = files.read_json(self._path("supervisor.json")) or {}
        started = values.get("started")
        return float(started) if isinstance(started, (int, float)) else self._created()

    def _created(self) -> float:
        return files.changed_at(self._path("spec.json")) or files.changed_at(self.dir)

    def _last_sign(self) -> float:
        """When one of its logs was last written."""
        names = ["launcher.log", *(f"rank{rank}.log" for rank in self.expected()), "spec.json"]
        return max(files.changed_at(self._path(name)) for name in names)

    def _path(self, *names: str) -> str:
        return os.path.join(self.dir, *names)
