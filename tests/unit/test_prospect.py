"""What is said before a restart: who restarts, what it goes on from, what is lost, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent import wire
from tui.fleet import group_restart
from tui.fleet.errors import EncampError, RequestRefused, UsageError
from tui.fleet.parallel import HostsFailed
from tui.fleet.prospect import Prospect, look
from tui.fleet.store import HostView, Link, RunView, Store

NODES = tuple(wire.Node(name, f"id-{name}", f"10.0.0.{n}", "eth0") for n, name in enumerate("ab"))
PATH = "/h/runs/r/checkpoints"


class Host:
    """A host that has part `rank` of the run, and answers with its checkpoints."""

    live = True

    @property
    def view(self) -> HostView:
        return self.store.hosts[self.name]

    def __init__(self, store: Store, name: str, rank: int, answer: dict[str, Any] | EncampError) -> None:
        self.name = name
        self.answer = answer
        self.store, self.rank = store, rank
        store.add_host(name, f"root@{name}")
        store.apply(
            name, wire.Hello(1, 1, "1", "b", f"id-{name}", "x", name, "root", "/h", "py", 1, time.time(), 1.0)
        )
        store.set_link(name, Link.LIVE)

    def tell(self, state: str, step: int | None, process_state: str = "S") -> None:
        ended = 1300.0 if state in wire.END_STATES else None
        info = wire.Run(
            "r",
            "r",
            "p",
            "ddp",
            2,
            state,
            "",
            1000.0,
            1100.0,
            ended,
            2,
            1,
            "py",
            ("x",),
            "/",
            None,
            NODES,
            self.rank,
        )
        self.store.apply(self.name, info)
        sample = wire.RankSample(
            self.rank, 0, "running", process_state=process_state, step=step, step_time=1300.0
        )
        self.store.apply(self.name, wire.Ranks("r", 2, 1300.0, (sample,)))
        self.store.apply(self.name, wire.Ready())

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert (method, params) == ("checkpoints", {"run": "r"})
        if isinstance(self.answer, EncampError):
            raise self.answer
        return self.answer


def told(kind: str = "task", *complete: int, incomplete: tuple[int, ...] = ()) -> dict[str, Any]:
    saved = [{"step": step, "time": 1000.0 + step} for step in complete]
    return {"path": PATH, "kind": kind, "complete": saved, "incomplete": list(incomplete)}


class Scene:
    """The run on two hosts that answer so; it is at step 250."""

    def __init__(self, *answers: dict[str, Any] | EncampError, state: str = "running") -> None:
        self.store = Store()
        self.hosts = [Host(self.store, "ab"[rank], rank, answer) for rank, answer in enumerate(answers)]
        for host in self.hosts:
            host.tell(state, 250)

    @property
    def run(self) -> RunView:
        run = self.store.find_run("r")
        assert run is not None
        return run

    async def look(self, **more: Any) -> Prospect:
        hosts: Any = self.hosts
        return await look(self.run, hosts, **more)


async def test_it_goes_on_from_the_newest_that_any_host_has() -> None:
    scene = Scene(told("task", 100, 200), told("task", 100, incomplete=(50, 220)))
    found = await scene.look()
    assert (found.attempt, found.ranks, found.hosts) == (3, 2, ("a", "b"))
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.checkpoint.hosts) == (200, ("a",))
    assert (found.lost_steps, found.lost_seconds) == (50, 100.0)
    assert found.sentences(1320.0) == [
        "Attempt 3: all 2 ranks on a and b stop and restart.",
        "It goes on from step-200, complete on a, saved 2 min ago.",
        "Lost at most: 50 steps (1 min 40 s). The ranks are asked to save at step 250 before they stop.",
        "Not written to the end, and not counted: step-220.",
    ]


async def test_stalled_ranks_cannot_save() -> None:
    said = (await Scene(told("task", 200), told("task", 200), state="stalled").look()).sentences(1320.0)
    assert "the run is at step 250 and too stuck to save first" in said[2]
    over = (await Scene(told("task", 250), told("task", 250), state="failed").look()).sentences(1320.0)
    assert over[0] == "Attempt 3: all 2 ranks on a and b restart."
    assert over[2] == "Lost: no step, the run was at step 250."


async def test_going_back_is_by_choice_and_says_what_it_costs() -> None:
    scene = Scene(told("task", 100, 200), told("task", 150))
    found = await scene.look(from_step=100)
    assert (found.lost_steps, found.newer) == (150, (150, 200))
    assert "step-150 and step-200 are set aside (kept as step-N.aside)" in found.sentences(1320.0)[1]
    begin = await scene.look(from_step=0)
    assert (begin.checkpoint, begin.lost_steps, begin.lost_seconds) == (None, 250, 300.0)
    assert begin.sentences(1320.0)[1] == "It begins at step 1 again: as you asked."
    with pytest.raises(UsageError, match="no complete checkpoint of step 120") as refused:
        await scene.look(from_step=120)
    assert "100, 150, 200" in refused.value.hint


async def test_what_an_attempt_began_from_is_lost_too_when_it_failed_at_once() -> None:
    scene = Scene(told("task", 100, 200), told("task", 100, 200), state="failed")
    for host in scene.hosts:
        host.tell("failed", 0)
    back = await scene.look(from_step=100)
    assert (back.lost_steps, back.lost_seconds) == (100, 100.0)
    assert back.sentences(1320.0)[2] == "Lost: 100 steps (1 min 40 s), the run was at step 200."
    assert (await scene.look()).lost_steps == 0


async def test_of_a_script_nothing_is_claimed() -> None:
    scene = Scene(told("script", 100), told("script"))
    found = await scene.look()
    assert (found.lost_steps, found.lost_seconds) == (None, None)
    assert found.sentences(1320.0)[1:] == [
        "It runs a program of yours: from which checkpoint it goes on is its own business. "
        f"In {PATH} the newest complete one is step-100."
    ]
    with pytest.raises(UsageError, match="only that knows how to go on from step 100"):
        await scene.look(from_step=100)


async def test_without_a_checkpoint_all_is_lost_and_hosts_that_do_not_tell_are_named() -> None:
    refusal = RequestRefused("unknown-method", "this agent knows no 'checkpoints'")
    said = (await Scene(told(), refusal).look()).sentences(1320.0)
    assert said[1] == f"It begins at step 1 again: there is no complete checkpoint in {PATH}."
    assert said[-1] == "b does not tell its checkpoints: this agent knows no 'checkpoints'"
    silent = Scene(refusal, refusal)
    assert "no host tells of" in (await silent.look()).sentences(1320.0)[1]
    with pytest.raises(EncampError, match="cannot be done safely"):
        await silent.look(from_step=100)
    nonsense = await Scene(told("task", 100), {"path": 7}).look()
    assert "its answer makes no sense" in nonsense.notes[0]


async def test_what_hangs_in_the_kernel_is_named_with_the_way_out() -> None:
    scene = Scene(told("task", 200), told("task", 200))
    scene.hosts[1].tell("running", 250, "D")
    said = (await scene.look()).sentences(1320.0)
    assert "Rank 1 on b hangs in the kernel (D)" in said[-1]
    assert "--without b" in said[-1]
    left_out = await scene.look(without=("b",))
    assert (left_out.hosts, left_out.ranks, left_out.stuck) == (("a",), 1, ())


def with_gpu(gpu: wire.GpuSample) -> wire.Sample:
    """The telemetry of a host that has this GPU."""
    return wire.Sample(
        time=1310.0,
        monotonic=1.0,
        cpu=wire.CpuSample(4, 4.0, 1.0, 0.0, 0.0, 0.0, None),
        memory=wire.MemorySample(1, 2, False),
        shm=None,
        disk=None,
        network=wire.NetworkSample(None, None),
        gpu=wire.GpuStatus("ok", "", 1310.0, "570", (gpu,)),
        agent=wire.AgentCost(None, 1),
    )


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (wire.GpuSample(0, "u", "n", "ok"), ""),
        (wire.GpuSample(0, "u", "n", "lost"), "GPU 0 has fallen off the bus"),
        (wire.GpuSample(0, "u", "n", "ok", xids=(wire.Xid(1290.0, 31),)), ""),
        (wire.GpuSample(0, "u", "n", "ok", xids=(wire.Xid(900.0, 79),)), ""),
        (wire.GpuSample(1, "u", "n", "ok", xids=(wire.Xid(1290.0, 79),)), ""),
        (
            wire.GpuSample(0, "u", "n", "ok", xids=(wire.Xid(1290.0, 79), wire.Xid(1291.0, 45))),
            "GPU 0: XID 79: the GPU has fallen off the bus",
        ),
    ],
)
async def test_a_host_with_a_faulty_gpu_is_refused_with_the_way_out(gpu: wire.GpuSample, said: str) -> None:
    scene = Scene(told("task", 200), told("task", 200))
    bad = scene.hosts[1]
    rank = wire.RankSample(1, 0, "running", step=250, step_time=1300.0, gpu=0)
    scene.store.apply("b", wire.Ranks("r", 2, 1300.0, (rank,)))
    scene.store.apply("b", with_gpu(gpu))
    sessions: Any = scene.hosts
    if not said:
        assert (await scene.look()).faulty == ()
        group_restart.refuse_faulty(sessions, "r")
        return
    prospect = await scene.look()
    assert prospect.faulty == (("b", said),)
    assert f"b has a faulty GPU, and is refused: leave it out with --without b. {said}." in (
        prospect.sentences(1320.0)
    )
    with pytest.raises(group_restart.CannotGoOn) as refused:
        group_restart.refuse_faulty(sessions, "r")
    assert f"b: {said}" in refused.value.message
    assert "encamp restart r --without b" in refused.value.hint
    group_restart.refuse_faulty(sessions[:1], "r")
    alone: Any = [bad]
    with pytest.raises(group_restart.CannotGoOn) as refused:
        group_restart.refuse_faulty(alone, "r")
    assert "--force" in refused.value.hint and "--without" not in refused.value.hint
    assert (await scene.look(without=("b",))).faulty == ()


def test_what_could_not_be_ended_can_be_left_behind() -> None:
    stuck = RequestRefused("left-alive", "process 7 of attempt 1 cannot be ended", "reboot the host")
    with pytest.raises(group_restart.CannotGoOn) as refused:
        group_restart._offer_without("r", HostsFailed({"b": stuck}), 2)
    assert "was stopped, and not started again" in refused.value.message
    assert "encamp restart r --without b" in refused.value.hint
    group_restart._offer_without("r", HostsFailed({"b": stuck}), 1)
    group_restart._offer_without("r", HostsFailed({"b": RequestRefused("busy", "no")}), 2)
