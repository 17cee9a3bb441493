"""`encamp watch` without hosts: what it tells and does about stalls, failures and ends; notifications."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from agent.diagnosis import Diagnosis
from agent.diagnosis.evidence import Evidence, Rank
from tui.fleet import diagnosis, group_watch, notify, watching
from tui.fleet.diagnosis import Report
from tui.fleet.errors import EncampError, HostError
from tui.fleet.notify import Notifier
from tui.fleet.run_watch import RunFailed
from tui.fleet.watching import Happening, Watch, fingerprint

TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 31, in <module>
    loss()
  File "/usr/lib/python3.11/site-packages/torch/x.py", line 7, in step
    raise ValueError
ValueError: 5
"""


class Run:
    """A run that is in one state after the other, as a test says."""

    id = "run-a"
    reason = "a reason"
    parts = ()

    @property
    def live(self) -> bool:
        return self.state in ("running", "stalled")

    def __init__(self) -> None:
        self.attempt, self.state, self.step = 1, "running", 10

    def part_of(self, rank: int) -> None:
        return None


class Scene:
    """A watch over it, and what it has told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = Run()
        self.told: list[Happening] = []
        self.restarts: list[EncampError | str] = []
        """What comes of each restart: the state of the new attempt, or a refusal."""
        self.error_type = "ValueError"
        self.report: Report | None = None
        """What is found; None: that rank 1 is dead."""
        monkeypatch.setattr(diagnosis, "examine", self.examine)
        monkeypatch.setattr(group_watch, "check", lambda sessions: None)
        for name, value in (("LOOK_SECONDS", 0.001), ("STOPPED_SECONDS", 0.02), ("AWAY_SECONDS", 0.02)):
            monkeypatch.setattr(watching, name, value)
        monkeypatch.setattr(watching, "AGAIN_SECONDS", 0.02)

    def find_run(self, run: str) -> Run:
        return self.run

    async def examine(self, run: Run, sessions: object) -> Report:
        if self.report is not None:
            return self.report
        rank = Rank(1, "box", "exited", exit_code=1, error_type=self.error_type, traceback=TRACEBACK)
        evidence = Evidence(run.id, run.attempt, 1.0, 2, 1.0, (rank,), ())
        found = Diagnosis("dead", "rank 1 is dead", (1,), 0.9)
        return Report(run.id, run.attempt, run.state, "", found, evidence, (), ())

    async def restart(self, attempt: int) -> int:
        assert attempt == self.run.attempt, "the one that was looked at"
        outcome = self.restarts.pop(0)
        if isinstance(outcome, EncampError):
            raise outcome
        self.run.attempt += 1
        self.run.state = outcome
        return self.run.attempt

    def watch(self, *, restart: bool = True, most: int = 10) -> asyncio.Task[Happening]:
        watch = Watch(
            self,  # type: ignore[arg-type]
            list,
            "run-a",
            restart=self.restart if restart else None,
            max_restarts=most,
            tell=self.told.append,
        )
        return asyncio.ensure_future(watch.run())

    @property
    def events(self) -> list[str]:
        return [happening.event for happening in self.told]

    async def sees(self, *events: str) -> None:
        await eventually(lambda: self.events == list(events), 5, f"{events}, not {self.events}")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield Scene(monkeypatch)


async def test_a_stall_is_told_once_and_left_alone(scene: Scene) -> None:
    watch = scene.watch(restart=False)
    await scene.sees("watching")
    assert scene.told[0].sentence == "it is running, at step 10"
    scene.run.state = "stalled"
    await scene.sees("watching", "stalled")
    stalled = scene.told[-1].document()
    assert (stalled["verdict"], stalled["culprits"], stalled["sentence"]) == ("dead", [1], "rank 1 is dead")
    scene.run.state = "running"
    await scene.sees("watching", "stalled", "resumed")
    scene.run.state = "unreachable"
    await scene.sees("watching", "stalled", "resumed", "unreachable")
    scene.run.state = "running"
    await scene.sees("watching", "stalled", "resumed", "unreachable", "reachable")
    scene.run.state = "finished"
    assert (await watch).event == "finished"


async def test_a_failure_without_restarts_is_the_end(scene: Scene) -> None:
    scene.run.state = "failed"
    assert (await scene.watch(restart=False)).event == "failed"


async def test_restarts_go_on_until_they_bring_nothing(scene: Scene) -> None:
    scene.restarts = ["failed"] * 5
    scene.run.state = "stalled"
    last = await scene.watch()
    assert last.event == "given-up"
    assert "the same has happened 3 times: dead ValueError train.py:31" in last.sentence
    assert "Its processes have ended" in last.sentence and "encamp restart run-a" in last.sentence
    assert scene.told[0].sentence == "it is stalled: a reason"
    twice = ["restarting", "restarted"] * 2
    assert scene.events == [
        "watching", "stalled", *twice[:2], "failed", *twice[2:], "failed", "given-up",
    ]  # fmt: skip


@pytest.mark.parametrize("step, told", [(None, "not-restarted"), (7, "restarting")])
async def test_a_program_that_may_be_well_is_left_alone(scene: Scene, step: int | None, told: str) -> None:
    evidence = Evidence("run-a", 1, 1.0, 1, 1.0, (Rank(0, "box", "running", step=step),), ())
    found = Diagnosis("unknown", "no progress for 61 s: rank 0 sleeps", (0,), 0.3)
    scene.report = Report("run-a", 1, "stalled", "", found, evidence, (), ())
    scene.restarts = ["running"]
    scene.run.state = "stalled"
    watch = scene.watch()
    await eventually(lambda: scene.events[:3] == ["watching", "stalled", told], 5, "what it does is told")
    scene.run.state = "finished"
    assert (await watch).event == "finished"


async def test_an_attempt_that_dies_at_once_is_a_failure_like_any_other(scene: Scene) -> None:
    died = RunFailed("run-a", 2, "it died", "", "rank1", "", "box")
    scene.run.state = "failed"

    async def die(_attempt: int) -> int:
        scene.run.attempt += 1
        raise RunFailed("run-a", scene.run.attempt, "it died", "", "rank1", "", "box")

    scene.restart = die  # type: ignore[method-assign]
    last = await scene.watch()
    assert died.attempt == 2
    assert (last.event, last.attempt) == ("given-up", 3)


async def test_a_refused_restart_is_tried_again(scene: Scene) -> None:
    away = HostError("box is away", "Wait.")
    scene.restarts = [away, away, away, away, away, EncampError("no space"), "running"]
    scene.run.state = "failed"
    watch = scene.watch()
    await scene.sees("watching", "failed", "restarting", "not-restarted", "not-restarted", "restarted")
    scene.run.state = "stopped"  # by somebody, for good
    assert (await watch).event == "stopped"


async def test_a_restart_that_stays_refused_is_the_end(scene: Scene) -> None:
    scene.restarts = [EncampError("no space")] * 5
    scene.run.state = "stalled"
    last = await scene.watch()
    assert scene.events[-2:] == ["not-restarted", "given-up"]
    assert "holds its GPUs: `encamp stop run-a` frees them" in last.sentence
    assert len(scene.restarts) == 5 - watching.TRIES


async def test_a_restart_by_somebody_else_is_followed(scene: Scene) -> None:
    watch = scene.watch()
    await scene.sees("watching")
    scene.run.attempt, scene.run.state = 2, "starting"
    await scene.sees("watching", "restarted")
    scene.run.state = "finished"
    assert (await watch).attempt == 2


@pytest.mark.parametrize("before", ["stalled", "failed"])
async def test_a_restart_by_somebody_else_during_the_look_is_not_undone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    async def examine(run: Run, sessions: object) -> Report:
        report = await scene.examine(run, sessions)
        scene.run = Run()
        scene.run.attempt, scene.run.state = 2, "running"
        return report

    monkeypatch.setattr(diagnosis, "examine", examine)
    scene.run.state = before
    watch = scene.watch()
    await scene.sees("watching", "restarted")
    scene.run.state = "finished"
    assert (await watch).event == "finished"
    assert scene.restarts == [] and scene.run.attempt == 2


async def test_a_fingerprint_is_the_place_in_the_user_s_code(scene: Scene) -> None:
    report = await scene.examine(scene.run, ())
    assert fingerprint(report) == "dead ValueError train.py:31"
    assert fingerprint(None) == ""


async def test_notifications_come_in_order_and_their_command_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(notify, "NOTIFY_SECONDS", 2.0)
    notifier = Notifier(f"cat >> {tmp_path}/told", said.append)
    messages: list[dict[str, Any]] = [{"event": f"stalled {n}", "text": "ä"} for n in range(3)]
    for message in messages:
        notifier.tell(message)
    await notifier.close(patient=True)
    assert [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()] == messages
    assert said == []
    deaf = Notifier("exec <&-; head -c 30000000 /dev/zero >&2", said.append)
    deaf.tell({"text": "x" * 200_000})
    await deaf.close(patient=True)
    assert said == []
    failing = Notifier("echo out; echo no such topic >&2; exit 3", said.append)
    failing.tell({})
    await failing.close(patient=True)
    assert said == ["the notify command ended with 3: no such topic"]


async def test_a_notify_command_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "NOTIFY_SECONDS", 0.3)
    said: list[str] = []
    hanging = Notifier(f"echo $$ > {tmp_path}/pid; sleep 100; true", said.append)
    hanging.tell({"event": "stalled"})
    await eventually(lambda: said, 5)
    assert said == ["the notify command did not end within 0.3 s and was killed"]
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not _words(pid), 5)
    await hanging.close(patient=True)


def _words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
