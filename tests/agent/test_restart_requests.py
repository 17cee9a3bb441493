"""What a restart rests on: checkpoints that are told, what is left of the attempt before, and who has it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from attempts import Lab, events, order

from agent import actions, checkpoint_requests, files, nodes, paths, prepare, wire
from agent.attempt import Attempt
from agent.errors import RunError


def checkpoint(folder: Path, step: int, /, **said: object) -> None:
    (folder / f"step-{step}").mkdir(parents=True)
    if said:
        (folder / f"step-{step}" / "complete.json").write_text(json.dumps(said))


def test_checkpoints_are_told_where_the_trainer_has_them(lab: Lab, tmp_path: Path) -> None:
    attempt = lab.create("forever")
    found = checkpoint_requests.find(lab.home, attempt.run)
    own = Path(paths.checkpoints_dir(lab.home, attempt.run))
    assert found == {"path": str(own), "kind": "script", "complete": [], "incomplete": []}
    checkpoint(own, 10, step=10, time=5.5)
    checkpoint(own, 9, step=9, time=4)
    checkpoint(own, 12)
    checkpoint(own, 13, step=11, time=1)
    (own / "step-14.aside").mkdir()
    found = checkpoint_requests.find(lab.home, attempt.run)
    assert found["complete"] == [{"step": 9, "time": 4.0}, {"step": 10, "time": 5.5}]
    assert found["incomplete"] == [12, 13]
    for words in (("--checkpoint-dir", "mine"), (f"--checkpoint-dir={tmp_path}/mine", "--x")):
        elsewhere = lab.create(*words)
        assert checkpoint_requests.find(lab.home, elsewhere.run)["path"] == f"{tmp_path}/mine"


def test_a_task_goes_back_to_a_step_and_a_script_cannot(lab: Lab, fake_torch: Path) -> None:
    script = dataclasses.replace(lab.spec("run-a"), python=lab.python)
    with pytest.raises(RunError, match=r"only .*behave.py itself knows how to go on from step 5"):
        prepare.plan(lab.home, order(script, resume_step=5), prepare.Hardware())
    task = dataclasses.replace(script, target_kind="task", target="trainer")
    started = prepare.plan(lab.home, order(task, resume_step=5), prepare.Hardware())
    assert started.env["ENCAMP_RESUME_STEP"] == "5"
    assert "ENCAMP_RESUME_STEP" not in prepare.plan(lab.home, order(task), prepare.Hardware()).env


def test_what_could_not_be_ended_is_in_the_way_of_the_next_attempt(lab: Lab, fake_torch: Path) -> None:
    attempt = lab.running("forever")
    # As a supervisor leaves it that has waited in vain for a process in the kernel.
    files.write_json(f"{attempt.dir}/exit.json", {"code": None, "time": 1.0, "reason": "it hangs"})
    spec = attempt.launch_spec()
    assert spec is not None
    wish = order(dataclasses.replace(spec, python=lab.python), attempt=2)
    with pytest.raises(RunError, match="of attempt 1 cannot be ended") as refused:
        prepare.prepare(lab.home, wish, prepare.Hardware(), lease=False)
    assert refused.value.code == "left-alive"
    assert not Path(paths.attempt_dir(lab.home, attempt.run, 2)).exists()
    forced = dataclasses.replace(wish, forced="it is another one")
    second, _ = prepare.prepare(lab.home, forced, prepare.Hardware(), lease=False)
    assert ("restarted", "ann") in events(second)


async def no_look(attempt: Attempt) -> None:
    """Nobody looks before anything is stopped."""


class Gpus:
    """A monitor whose only GPU has `used` bytes in use, less with each look."""

    def __init__(self, used: int, freed: int) -> None:
        self.used = used
        self.freed = freed

    def status(self) -> wire.GpuStatus:
        self.used = max(0, self.used - self.freed)
        return wire.GpuStatus("ok", "", 1.0, gpus=(self.gpu(),))

    def gpu(self) -> wire.GpuSample:
        return wire.GpuSample(0, "GPU-0", "H100", "ok", memory_used_bytes=self.used)

    async def survey(self) -> dict[str, Any]:
        return {"processes": [{"gpu": 0, "pid": 4711, "memory_bytes": self.used}]}


async def test_the_memory_of_the_gpus_is_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "GPU_FREE_SECONDS", 0.3)
    attempt = lab.create("forever")
    files.write_json(f"{attempt.dir}/spec.json", {**attempt.spec(), "gpu_memory": {"0": 1 << 30}})
    spec = attempt.launch_spec()
    assert spec is not None
    wish = order(spec, attempt=2)
    for used, freed, fine in ((60 << 30, 20 << 30, True), (60 << 30, 0, False), (2 << 30, 0, True)):
        gpus = Gpus(used, freed)
        doer = actions.Actions(lab.home, gpus, lambda: None, no_look)  # type: ignore[arg-type]
        if fine:
            await doer._wait_for_memory(wish)
            continue
        with pytest.raises(RunError, match="process 4711 on GPU 0 has it") as refused:
            await doer._wait_for_memory(wish)
        assert refused.value.code == "gpus-held"
        await doer._wait_for_memory(dataclasses.replace(wish, forced="shared"))
        await doer._wait_for_memory(order(spec))


def test_the_gpus_are_noted_as_they_were_before(lab: Lab, fake_torch: Path) -> None:
    spec = dataclasses.replace(lab.spec("run-a", nproc=1), python=lab.python)
    gpu = Gpus(7, 0).gpu()
    attempt, _ = prepare.prepare(lab.home, order(spec), prepare.Hardware((gpu,)), lease=False)
    assert attempt.spec()["gpu_memory"] == {"0": 7}


def test_who_has_the_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pair = (wire.Node("lead", "a" * 32, "127.0.0.1", "lo"), wire.Node("b", "b" * 32, "127.0.0.2", "lo"))
        placement = wire.Placement(pair, 0, "127.0.0.1", port, "run-1-x")
        with pytest.raises(RunError, match=rf"port {port} .* is in use by process {os.getpid()} \("):
            nodes.check(placement, 2)
