"""Runs a scenario for real: the agent's daemon, torchrun, the script; and measures what is said and how soon.

The alarm is awaited from the daemon, as everybody gets it, and the same evidence is asked for once more. In
the end the run is stopped, and nothing of it may be left alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

# These folders cannot be packages: the name of the one is the product's.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "agent"))

from agent_client import AgentHost, Connection, Refused
from lab import cgroups
from lab.options import HostOptions
from waiting import wait_until

import trainer
from agent import environment, process, typed, wire
from agent.diagnosis import Diagnosis, Evidence, diagnose

from .scenarios import Scenario

SCRIPTS = Path(__file__).parent / "scripts"

START_SECONDS = 120.0
"""Until a run has begun, on a machine that does other things."""

END_SECONDS = 180.0
"""Until a run that is healthy has ended, or one that is not has been found out."""

TRAINED_STEPS = 8
"""Steps after which a signal is sent from outside."""

CODE = "c0de" * 16
"""What stands for the hash of the trainer's code."""


class NotPossible(Exception):
    """This machine cannot do what the scenario needs; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """What was said of a scenario. `seconds` are from the moment in which it got stuck."""

    scenario: Scenario
    verdict: str
    culprits: tuple[int, ...]
    seconds: float | None
    sentence: str
    wrong: str = ""
    """What is not as it should be; empty when all is."""

    @property
    def ok(self) -> bool:
        """Whether what was said is right, however late."""
        return not self.wrong

    @property
    def late(self) -> bool:
        """Whether it came later than it may on a machine that does nothing else."""
        return (self.seconds or 0.0) > self.scenario.seconds

    def line(self) -> str:
        """The row of the table."""
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}"
        culprits = ",".join(map(str, self.culprits)) or "-"
        ok = f"late: more than {self.scenario.seconds:g} s" if self.late else "ok"
        ok = ok if self.ok else f"WRONG: {self.wrong}"
        return f"{self.scenario.name:22} {self.verdict:20} {culprits:9} {seconds:>6}  {ok}"


HEADER = f"{'scenario':22} {'verdict':20} {'culprit':9} {'s':>6}  ok"


class House:
    """A host on which scenarios are played one after the other; it looks for Python only once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = AgentHost(str(folder / "home"), sys.executable)
        self._numbers = itertools.count(1)
        shutil.copytree(Path(trainer.__file__).parent, Path(self.host.home, "code", CODE, "trainer"))

    def play(self, scenario: Scenario) -> Outcome:
        """Run it and say what came of it. Raises NotPossible."""
        if scenario.needs and shutil.which(scenario.needs) is None:
            raise NotPossible(f"there is no {scenario.needs}")
        if scenario.memory:
            with _limited(scenario.memory) as groups, house() as own:
                return own.play_in(groups, scenario)
        return self.play_in((), scenario)

    def play_in(self, groups: Iterable[Path], scenario: Scenario) -> Outcome:
        """As `play`, in those control groups."""
        run = f"run-{next(self._numbers)}"
        folder = self.folder / run
        folder.mkdir()
        with contextlib.closing(self.host.connect()) as viewer:
            for group in groups:
                (group / "cgroup.procs").write_text(str(viewer.hello.pid))
            outcome = Stage(scenario, run, folder, self.host, viewer).outcome()
            left = _stopped(self.host, viewer, run)
        return dataclasses.replace(outcome, wrong=left) if left and outcome.ok else outcome


@contextlib.contextmanager
def house() -> Iterator[House]:
    """A host for scenarios, until the end of which all that runs there ends too."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = House(Path(folder))
        try:
            yield made
        finally:
            made.host.close()


def _stopped(host: AgentHost, viewer: Connection, run: str) -> str:
    """Stop the run, and say what is left of it."""
    with contextlib.suppress(Refused):  # it is over already
        viewer.request("stop", run=run, actor="ann", grace_seconds=0.0, timeout=START_SECONDS)
    marks = (run, "1", str(host.attempt_dir(run)))
    left = process.marked(dict(zip(environment.MARKS, marks, strict=True)))
    return f"after it was stopped {len(left)} processes are left alive: {left}" if left else ""


@dataclass
class Stage:
    """One scenario on one host."""

    scenario: Scenario
    run: str
    folder: Path
    host: AgentHost
    viewer: Connection

    def outcome(self) -> Outcome:
        """Launch, do from outside what is to be done, wait for what is said."""
        scenario = self.scenario
        self.viewer.request("launch", spec=self._spec(), actor="ann", timeout=START_SECONDS)
        begun = self._signal_sent() if scenario.signal else None
        if scenario.ask_at:
            self._until_step(scenario.ask_at)
            return self._judged(self._asked(), 0.0)
        if scenario.silent_for:
            return self._silence()
        told = self._told_of_trouble(failing=not scenario.healthy)
        if scenario.healthy:
            return self._healthy_end(told)
        seen = time.time()
        early = told.reason if told.state == "running" else ""
        if early:  # the first failure is shown before its consequences are over
            told = self._told_of_trouble()
        found = self._alarm() if told.state == "stalled" else self._asked()
        if told.state != "stalled" and not early:
            seen = time.time()
        if begun is None:
            path = self.folder / "begun"
            begun = float(path.read_text()) if path.exists() else seen
        again = self._asked()
        outcome = self._judged(found, seen - begun)
        if outcome.ok and (again.verdict, again.culprits) != (found.verdict, found.culprits):
            return dataclasses.replace(outcome, wrong=f"asked again: {again.verdict}: {again.sentence}")
        if outcome.ok and early and not any(f"rank {rank} " in early for rank in found.culprits):
            return dataclasses.replace(outcome, wrong=f"at first: {early}")
        return outcome

    def _told_of_trouble(self, *, failing: bool = False) -> wire.Run:
        """Wait until the run is stalled or over, with `failing` also for a rank that is."""
        return self.viewer.until(
            wire.Run,
            lambda told: (
                told.run == self.run
                and (
                    told.state == "stalled"
                    or told.state in wire.END_STATES
                    or (failing and told.state == "running" and bool(told.reason))
                )
            ),
            END_SECONDS,
        )

    def _healthy_end(self, told: wire.Run) -> Outcome:
        if told.state == "stalled":
            found = self._alarm()
            return self._as(found, None, f"a false alarm: {found.sentence}")
        wrong = "" if told.state == "finished" else f"it {told.state}: {told.reason}\n{self._log_tails()}"
        return Outcome(self.scenario, "healthy", (), None, told.reason, wrong)

    def _silence(self) -> Outcome:
        self.viewer.until_run(self.run, "running")
        with contextlib.suppress(AssertionError):
            told = self.viewer.expect(
                wire.Run,
                lambda told: told.run == self.run and told.state != "running",
                timeout=self.scenario.silent_for,
            )
            return Outcome(self.scenario, told.state, (), None, told.reason, f"{told.state}: {told.reason}")
        return self._judged(self._asked(), 0.0)

    def _judged(self, found: Diagnosis, seconds: float) -> Outcome:
        scenario = self.scenario
        wrong = ""
        if found.verdict not in scenario.verdicts:
            wrong = f"not {'|'.join(scenario.verdicts)}"
        elif found.culprits != scenario.culprits:
            wrong = f"not {scenario.culprits}"
        elif scenario.words not in found.sentence:
            wrong = f"not {scenario.words!r}"
        return self._as(found, seconds, f"{wrong}: {found.sentence}" if wrong else "")

    def _as(self, found: Diagnosis, seconds: float | None, wrong: str) -> Outcome:
        return Outcome(self.scenario, found.verdict, found.culprits, seconds, found.sentence, wrong)

    def _alarm(self) -> Diagnosis:
        recorded = json.loads((self.host.attempt_dir(self.run) / "stall-1.json").read_text())
        return typed.from_json(Diagnosis, recorded["diagnosis"])

    def _asked(self) -> Diagnosis:
        evidence = self.viewer.request("evidence", run=self.run, timeout=60)["evidence"]
        if os.environ.get("ENCAMP_STALLS_EVIDENCE"):  # to look into what a verdict rests on
            Path(os.environ["ENCAMP_STALLS_EVIDENCE"]).write_text(json.dumps(evidence, indent=1))
        return diagnose(typed.from_json(Evidence, evidence))

    def _signal_sent(self) -> float:
        self._until_step(TRAINED_STEPS)
        culprit = self.scenario.culprits[0]
        path = self.host.attempt_dir(self.run) / f"rank{culprit}" / "rank.json"
        pid = json.loads(path.read_text())["pid"]
        os.kill(pid, self.scenario.signal)
        at = time.time()
        if self.scenario.paused:
            time.sleep(self.scenario.paused)
            os.kill(pid, signal.SIGCONT)
        return at

    def _until_step(self, step: int) -> None:
        self.viewer.until(
            wire.Ranks,
            lambda told: (
                told.run == self.run
                and bool(told.ranks)
                and all((rank.step or 0) >= step for rank in told.ranks)
            ),
            START_SECONDS,
        )

    def _log_tails(self) -> str:
        logs = sorted(self.host.attempt_dir(self.run).glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def _spec(self) -> dict[str, object]:
        scenario = self.scenario
        spec: dict[str, object] = {
            **self.host.spec(self.run, nproc=scenario.ranks, grace=1.0),
            "strategy": scenario.strategy,
            "target": str(SCRIPTS / scenario.script),
            "args": list(scenario.args),
            "cwd": str(self.folder),
            "env": {"OMP_NUM_THREADS": "1"},
        }
        if scenario.task:
            options = ("--task", str(SCRIPTS / scenario.script), "--steps", "60", "--micro-batch", "4")
            spec.update(
                target_kind="task",
                target="trainer",
                args=[*options, "--strategy", *scenario.args, "--log-every", "1"],
                code=[{"sha256": CODE, "name": "trainer"}],
            )
        return spec


@contextlib.contextmanager
def _limited(memory: str) -> Iterator[list[Path]]:
    """Control groups with that much memory, into which a process and so all that it starts can be put."""
    if os.geteuid() != 0:
        raise NotPossible("control groups are made by root")

    def refuse(reason: str) -> NoReturn:
        raise NotPossible(reason)

    groups = cgroups.limit(f"encamp-stalls-{os.getpid()}", HostOptions(memory=memory), refuse)
    try:
        yield groups
    finally:
        for group in groups:
            wait_until(partial(_removed, group), 20, f"{group} is empty")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True
