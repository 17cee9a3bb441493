"""What viewers are told about runs without asking: looked at once a second, said when it changes."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Dict, List, Sequence, Set, Tuple

from . import files, inquiry, ranks, runs, stall, telemetry, wire
from .attempt import Attempt

MAX_RUNS = wire.KNOWN_RUNS
"""The newest runs that a new viewer is told about."""

MAX_ENDED_RANKS = 20
"""Ended runs, the newest ones, whose ranks a new viewer is told about."""

AFTER_SECONDS = 5.0
"""How long an ended attempt's events are looked at: the last one is written after the end is recorded."""

ADOPT_SECONDS = 60.0
"""Pause before an attempt that still has no supervisor is given one again."""

COMMAND_CHARACTERS = 32 * 1024
"""How much of a command is told: arguments may be longer than a line of the wire."""

Key = Tuple[str, int]
"""A run and the number of its attempt."""


class Watcher:
    """What is said about the runs of `home`. It belongs to the event loop's thread."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._registry = runs.Registry(home)
        self._told: Dict[str, wire.Run] = {}
        self._ranks: Dict[str, wire.Ranks] = {}
        self._samplers: Dict[Key, ranks.RankSampler] = {}
        self._stalls: Dict[Key, stall.StallWatch] = {}
        self.host = telemetry.HostRecord()
        """The host's last minutes, for whoever takes its samples to add to."""
        self._records: Dict[Key, telemetry.RanksRecord] = {}
        self._failing: Dict[Key, str] = {}
        """Attempts of which a rank has failed while others still live, and what is said of it."""
        self._events: Dict[Key, int] = {}
        """Attempt -> how much of its events file has been told."""
        self._events_until: Dict[Key, float] = {}
        """Ended attempt -> `time.monotonic()` until which its events are looked at."""
        self._adopt_again: Dict[Key, float] = {}
        self._older_than_us: Set[Key] = set()
        """Attempts that were found, not begun: what they said before was told by another daemon."""
        for run in self._registry.runs():
            self._told[run.run] = run
            if run.state not in wire.END_STATES:
                key = (run.run, run.attempt)
                self._older_than_us.add(key)
                self._events[key] = _size(self._events_file(key))

    def any_live(self) -> bool:
        """Whether a run had not ended at the last look."""
        return bool(self._registry.live())

    def attempt(self, run: str, number: int) -> Attempt:
        """That attempt, whether it exists or not; what is known of the current one is used again."""
        known = self._registry.attempt(run)
        return known if known is not None and known.number == number else Attempt(self._home, run, number)

    def supervisors(self) -> List[int]:
        """Process ids of the supervisors that live."""
        found = (attempt.supervisor() for attempt in self._registry.live())
        return [identity[0] for identity in found if identity is not None]

    def orphans(self) -> List[Attempt]:
        """Attempts whose processes live and whose supervisor does not. Each is named once in a while."""
        now = time.monotonic()
        found = []
        for attempt in self._registry.live():
            key = (attempt.run, attempt.number)
            if now >= self._adopt_again.get(key, 0.0) and attempt.condition().unwatched:
                self._adopt_again[key] = now + ADOPT_SECONDS
                found.append(attempt)
        return found

    def known(self) -> List[wire.Message]:
        """What a new viewer is told: the newest runs, and the ranks of those that somebody may look at."""
        newest = sorted(self._told.values(), key=lambda run: run.started, reverse=True)[:MAX_RUNS]
        ended = [run for run in newest if run.state in wire.END_STATES][:MAX_ENDED_RANKS]
        for run in ended:
            if run.run not in self._ranks:
                sampler = self._sampler(self.attempt(run.run, run.attempt))
                self._ranks[run.run] = sampler.sample()
                sampler.close()
        messages: List[wire.Message] = [_bounded(run) for run in newest]
        for run in newest:
            sample = self._ranks.get(run.run)
            if sample is not None and sample.attempt == run.attempt:
                messages.append(sample)
        return messages

    def look(self) -> List[wire.Message]:
        """What has changed about runs, and new events."""
        messages: List[wire.Message] = []
        found = [self._with_alarm(run) for run in self._registry.runs()]
        for run in found:
            told = self._told.get(run.run)
            if told is run or told == run:
                continue
            self._told[run.run] = run
            messages.append(_bounded(run))
            key = (run.run, run.attempt)
            self._events.setdefault(key, 0)
            if run.state in wire.END_STATES:
                self._events_until[key] = time.monotonic() + AFTER_SECONDS
        if len(found) < len(self._told):
            for name in self._told.keys() - {run.run for run in found}:
                del self._told[name]
                self._ranks.pop(name, None)
                messages.append(wire.Removed(name))
        for key in [key for key in self._events if not os.path.isdir(self.attempt(*key).dir)]:
            del self._events[key]  # removed: another attempt may get its number
            self._events_until.pop(key, None)
        for key in list(self._events):
            messages.extend(self._new_events(key))
        return messages

    def tick(self, gpus: Sequence[wire.GpuSample]) -> List[wire.Message]:
        """`look`, and how the ranks of live runs do; at an attempt's end once more. Call once a second."""
        messages = self.look()
        live = {(attempt.run, attempt.number): attempt for attempt in self._registry.live()}
        for key, attempt in live.items():
            if key not in self._samplers:
                self._samplers[key] = self._sampler(attempt)
                self._records[key] = telemetry.RanksRecord()
                spec = attempt.launch_spec()
                fixed = spec.stall_seconds if spec is not None else 0.0
                self._stalls[key] = stall.StallWatch(fixed, inquiry.kept_rhythm(attempt))
        changed = False
        for key, sampler in list(self._samplers.items()):
            sample = sampler.sample(gpus)
            messages += [sample, *sampler.new_progress()]
            self._ranks[sample.run] = sample
            if self._records[key].add(sample.time, sample.ranks) or key not in live:
                self.keep(key)
            self._stalls[key].observe(sample.ranks, sampler.told(), time.monotonic())
            before = self._failing.get(key, "")  # it stays said when later ends blur the picture
            failing = (inquiry.failing(live[key], sample.ranks) if key in live else "") or before
            changed = changed or failing != before
            self._failing[key] = failing
            if key not in live:
                sampler.close()
                del self._samplers[key], self._stalls[key], self._failing[key], self._records[key]
        return messages + self.look() if changed else messages

    def ranks_of(self, attempt: Attempt) -> List[wire.RankSample]:
        """The ranks of an attempt, live or over, as they were seen last."""
        sample = self._ranks.get(attempt.run)
        if sample is None or sample.attempt != attempt.number:
            sampler = self._sampler(attempt)
            sample = sampler.sample()
            sampler.close()
        return list(sample.ranks)

    def keep(self, key: Key) -> None:
        """Write the last minutes of a live attempt, and of the host, into its folder."""
        if key in self._records:
            telemetry.keep(self.attempt(*key).dir, self.host, self._records[key])

    def stalls(self) -> Dict[Key, stall.StallWatch]:
        """The live attempts, and what is known of their progress."""
        return self._stalls

    def _with_alarm(self, run: wire.Run) -> wire.Run:
        key = (run.run, run.attempt)
        watch = self._stalls.get(key)
        if watch is None or run.state != "running":
            return run
        if watch.alarm is not None:
            return dataclasses.replace(run, state="stalled", reason=watch.alarm.sentence)
        failing = self._failing.get(key)
        return dataclasses.replace(run, reason=failing) if failing else run

    def _sampler(self, attempt: Attempt) -> ranks.RankSampler:
        key = (attempt.run, attempt.number)
        expected = attempt.expected()
        resume = key in self._older_than_us
        return ranks.RankSampler(attempt.dir, *key, len(expected), first_rank=expected.start, resume=resume)

    def _new_events(self, key: Key) -> List[wire.Event]:
        records, self._events[key] = files.read_json_lines(self._events_file(key), self._events[key])
        if time.monotonic() > self._events_until.get(key, float("inf")):
            del self._events[key], self._events_until[key]
        return parse_events(records, *key)

    def _events_file(self, key: Key) -> str:
        return os.path.join(self.attempt(*key).dir, "events.jsonl")


def parse_events(records: Sequence[Dict[str, object]], run: str, attempt: int) -> List[wire.Event]:
    """The lines of an attempt's events file; what is no event is left out."""
    found = []
    for record in records:
        try:
            found.append(wire.from_json(wire.Event, {**record, "run": run, "attempt": attempt}))
        except wire.WireError:
            continue  # written by something else, or damaged
    return found


def _bounded(run: wire.Run) -> wire.Run:
    left = COMMAND_CHARACTERS
    command = []
    for word in run.command:
        command.append(word if len(word) <= left else word[:left] + "...")
        left -= len(word)
        if left < 0:
            return dataclasses.replace(run, command=tuple(command))
    return run


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
