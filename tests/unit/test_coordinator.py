"""Several hosts from the controller's side: what fits together, who is to blame, what is taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually

from agent import wire
from tui.cli.connection import host_names
from tui.fleet import arrange, bringup, compare, group_restart, group_stop, group_watch
from tui.fleet.blame import Suspect, most_likely, suspects
from tui.fleet.bringup import Bringup, Order
from tui.fleet.compare import HostsDiffer, Plan
from tui.fleet.errors import EncampError, HostError, RequestRefused, Unreachable, UsageError
from tui.fleet.members import Forgotten, OtherMachine, leftovers, members
from tui.fleet.parallel import HostsFailed
from tui.fleet.placement import Rendezvous
from tui.fleet.session import LogRange
from tui.fleet.store import Link, Store

SPEC = wire.LaunchSpec("r-1", "r", "p", "ddp", "script", "x.py", nproc_per_node=2)
NODES = (wire.Node("a", "id-a", "10.0.0.1", "eth0"), wire.Node("b", "id-b", "10.0.0.2", "eth0"))

Answer = dict[str, Any] | Exception | Callable[[dict[str, Any]], Any]


def plan(nproc: int = 2, torch: str = "2.13.0+cpu") -> Plan:
    return Plan("r-1", 1, 2 * nproc, nproc, "/py", ("/py",), {}, "/", torch, None, 20000)


PLAN = {
    "run": "r-1", "attempt": 1, "world_size": 4, "nproc_per_node": 2, "python": "/py", "argv": ["/py"],
    "env": {}, "cwd": "/", "torch": "2.13.0", "cuda": None, "port": 20000,
}  # fmt: skip


class Host:
    """A session whose agent answers as told: by method, the last answer again and again."""

    def __init__(self, store: Store, name: str, **answers: Answer) -> None:
        self.store = store
        self.name = name
        self.view = store.add_host(name, f"{name}.example")
        self.live = True
        store.set_link(name, Link.LIVE)
        self.answers = answers
        self.asked: list[str] = []
        self.params: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        store.apply(name, hello(f"id-{name}"))
        self.view.ready = True

    def check(self) -> None: ...

    async def connected(self, timeout: float | None = None, *, patient: bool = True) -> None:
        del timeout, patient

    async def request(self, method: str, params: dict[str, Any], timeout: float = 30) -> dict[str, Any]:
        del timeout
        self.asked.append(method)
        self.params[method] = params
        answer = self.answers.get(method, {})
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer(params)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer

    async def read_log(self, run: str, attempt: int, stream: str, offset: int, length: int) -> LogRange:
        del run, attempt, offset, length
        data = self.logs.get(stream, b"")
        return LogRange(0, data, len(data), True)

    def tell(self, state: str = "running", attempt: int = 1, **fields: Any) -> None:
        """Let its part of the run be so."""
        values: dict[str, Any] = {
            "run": "r-1", "name": "r", "profile": "p", "strategy": "ddp", "attempt": attempt, "state": state,
            "reason": "", "created": 1.0, "started": 2.0, "ended": None, "world_size": 4, "nproc_per_node": 2,
            "python": "/py", "command": (), "cwd": "/", "nodes": NODES, "node_rank": int(self.name == "b"),
        }  # fmt: skip
        self.store.apply(self.name, wire.Run(**values | fields))

    def rank(self, rank: int, exit_code: int, words: str) -> None:
        """Let a rank have ended with these last words."""
        sample = wire.RankSample(rank, rank % 2, "exited", exit_code=exit_code)
        self.store.apply(self.name, wire.Ranks("r-1", 1, 3.0, (sample,)))
        self.logs[f"rank{rank}"] = words.encode()


def hello(host_id: str) -> wire.Hello:
    return wire.Hello(*wire.PROTOCOL, "1", "b", host_id, "boot", "h", "u", "/home", "3", 1, 0.0, 0.0)


def pair(**answers: Answer) -> tuple[Host, Host]:
    """Two hosts; what is told of `b_method` is only b's."""
    common = {name: answer for name, answer in answers.items() if not name.startswith("b_")}
    own = {name[2:]: answer for name, answer in answers.items() if name.startswith("b_")}
    store = Store()
    return Host(store, "a", **common), Host(store, "b", **common | own)


def bring_up(*hosts: Host, check: Callable[[Any], None] = lambda _: None) -> Bringup:
    order = Order(SPEC, 1, NODES, Rendezvous("10.0.0.1", 20001), "me", {"TOKEN": "secret"}, note="without c")
    return Bringup(hosts, order, lambda _host, _stage: None, check)  # type: ignore[arg-type]


# --- before anything is begun ------------------------------------------------------------------------------


def test_hosts_are_named_in_one_word_or_in_several() -> None:
    assert host_names(["a,b", "c"]) == ["a", "b", "c"]
    for wrong in (["a,a"], ["a", "a"], ["a,"], [""]):
        with pytest.raises(UsageError):
            host_names(wrong)


def test_different_numbers_of_ranks_are_refused_with_what_to_change() -> None:
    with pytest.raises(HostsDiffer) as refused:
        compare.check({"a": plan(8), "b": plan(4)}, {"a": 8, "b": None})
    assert "a 8 ranks (8 GPUs), b 4 ranks" in refused.value.message
    assert "--nproc-per-node 4" in refused.value.hint


def test_torch_may_differ_in_its_patch_only() -> None:
    compare.check({"a": plan(torch="2.13.0+cpu"), "b": plan(torch="2.13.1+cu128")}, {})
    with pytest.raises(HostsDiffer, match=r"a 2\.13\.0\+cpu \(/py\), b 2\.9\.1"):
        compare.check({"a": plan(), "b": plan(torch="2.9.1")}, {})


def test_two_names_of_one_machine_are_refused() -> None:
    a, b = pair()
    b.view.host_id = a.view.host_id
    with pytest.raises(UsageError, match="a and b are two names of one machine"):
        arrange.check_agents([a, b])  # type: ignore[list-item]


async def test_a_plan_asks_for_nothing_that_is_still_to_be_sent() -> None:
    a, b = pair(plan=PLAN)
    spec = wire.LaunchSpec(
        "r-1", "r", "p", "ddp", "script", "train.py", cwd="src", project=wire.Tree("0" * 64, "x", 1, 1),
        env_setup=wire.EnvSetup(("wandb",)), code=(wire.CodeRef("0" * 64, "trainer"),),
    )  # fmt: skip
    await arrange.plan([a, b], arrange.Wish(spec, 3, restarting=True))  # type: ignore[list-item]
    asked = a.params["plan"]
    assert (asked["attempt"], asked["gpus_may_be_held"]) == (3, True)
    assert (asked["spec"]["project"], asked["spec"]["code"]) == (None, ())
    assert asked["spec"]["env_setup"]["packages"] == ("wandb",)
    assert asked["spec"]["target_kind"] == "module"


# --- all or nothing ----------------------------------------------------------------------------------------


async def test_all_prepare_then_all_start_then_all_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch, "STEADY_SECONDS", 0.0)
    a, b = pair(prepare=PLAN)
    a.tell()
    b.tell()
    await bring_up(a, b).run()
    assert a.asked == b.asked == ["prepare", "start", "confirm"]
    told = b.params["prepare"]
    assert (told["placement"]["node_rank"], told["placement"]["rendezvous_port"]) == (1, 20001)
    assert (told["secrets"], told["note"]) == ({"TOKEN": "secret"}, "without c")


async def test_one_refusal_takes_back_what_the_others_have_prepared() -> None:
    a, b = pair(prepare=PLAN, b_prepare=RequestRefused("gpus-held", "attempt 1 of x holds GPU 0"))
    with pytest.raises(HostsFailed, match="b: attempt 1 of x holds GPU 0") as refused:
        await bring_up(a, b).run()
    assert (refused.value.host, refused.value.code, refused.value.exit_code) == ("b", "gpus-held", 1)
    assert a.asked == ["prepare", "abandon"]
    assert b.asked == ["prepare"], "it may have somebody else's attempt by that number"
    assert a.params["abandon"]["rendezvous_id"]


async def test_a_lost_answer_is_taken_back_as_well_and_a_host_that_stays_lost_is_named() -> None:
    a, b = pair(prepare=PLAN, b_prepare=Unreachable("lost"), b_abandon=Unreachable("lost"))
    with pytest.raises(HostsFailed) as refused:
        await bring_up(a, b).run()
    assert refused.value.exit_code == 3
    assert "b could not be told" in refused.value.hint
    assert "abandon" in a.asked
    assert "start" not in a.asked


async def test_a_host_that_does_not_start_ends_all() -> None:
    a, b = pair(prepare=PLAN, b_start=RequestRefused("expired", "it was prepared and never started"))
    with pytest.raises(HostsFailed, match="b: it was prepared"):
        await bring_up(a, b).run()
    assert a.asked == ["prepare", "start", "abandon"]
    assert b.asked == ["prepare", "start", "abandon"]


async def test_what_was_prepared_can_still_be_called_off() -> None:
    a, b = pair(prepare=PLAN)

    def refuse(plans: dict[str, Plan]) -> None:
        assert list(plans) == ["a", "b"]
        raise HostsDiffer("different")

    with pytest.raises(HostsDiffer):
        await bring_up(a, b, check=refuse).run()
    assert a.asked == b.asked == ["prepare", "abandon"]


async def test_cancelled_it_waits_for_the_answer_and_takes_it_back() -> None:
    go = asyncio.Event()

    async def slow() -> dict[str, Any]:
        await go.wait()
        return PLAN

    a, b = pair(prepare=PLAN, b_prepare=lambda _: slow())
    running = asyncio.create_task(bring_up(a, b).run())
    await eventually(lambda: "prepare" in b.asked)
    running.cancel()
    await asyncio.sleep(0)
    assert "abandon" not in a.asked
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert a.asked == b.asked == ["prepare", "abandon"]
    assert a.params["abandon"]["actor"] == "me, who interrupted its start"


async def test_a_host_that_is_lost_while_ranks_start_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_watch, "LOST_SECONDS", 0.1)
    a, b = pair(prepare=PLAN)
    a.tell("starting")
    b.live = False
    with pytest.raises(HostError, match="b was lost while its ranks started"):
        await bring_up(a, b).run()
    assert a.asked[-1] == "abandon"


# --- blame -------------------------------------------------------------------------------------------------


async def test_the_rank_that_others_failed_because_of_is_blamed() -> None:
    a, b = pair(prepare=PLAN)
    a.tell("failed", reason="rank 0 failed", exit_code=1)
    b.tell("failed", reason="rank 3 failed", exit_code=1)
    a.rank(0, 1, "RuntimeError: Connection closed by peer [10.0.0.2]:4242\n")
    a.rank(1, -15, "")
    b.rank(3, 1, "OutOfMemoryError: CUDA out of memory\n")
    with pytest.raises(EncampError, match="failed on b: rank 3 failed") as failed:
        await bring_up(a, b).run()
    assert (failed.value.stream, failed.value.host) == ("rank3", "b")  # type: ignore[attr-defined]
    assert "CUDA out of memory" in failed.value.tail  # type: ignore[attr-defined]
    assert failed.value.hint.startswith("All of it: encamp logs r-1 --rank 3")


def test_without_a_rank_the_launcher_that_ended_first_is_asked() -> None:
    a, b = pair()
    a.tell("failed", ended=9.0)
    b.tell("failed", ended=8.0)
    found = suspects([(host, host.view.runs["r-1"]) for host in (a, b)])  # type: ignore[misc]
    assert [(suspect.session.name, suspect.stream) for suspect in found] == [
        ("b", "launcher"), ("a", "launcher")
    ]  # fmt: skip


def test_a_rank_that_was_killed_is_blamed_last() -> None:
    a, _ = pair()
    a.tell()
    node = a.view.runs["r-1"]
    killed = Suspect(a, node, "rank0", True)  # type: ignore[arg-type]
    told = Suspect(a, node, "rank1")  # type: ignore[arg-type]
    assert most_likely([killed, told], ["no words", "Broken pipe"])[0] is told


# --- members -----------------------------------------------------------------------------------------------


def test_members_are_machines_whatever_they_are_called_here() -> None:
    store = Store()
    mine = Host(store, "mine")
    store.apply("mine", hello("id-b"))
    a = Host(store, "a")
    a.tell()
    store.apply("mine", wire.Run(**{**wire.to_json(a.view.runs["r-1"].info), "node_rank": 1, "nodes": NODES}))
    run = store.find_run("r-1")
    assert run is not None
    found = members(run, [mine, a])  # type: ignore[list-item]
    assert [(member.name, member.node.name, member.problem) for member in found] == [
        ("a", "a", None), ("mine", "b", None)
    ]  # fmt: skip


def test_why_a_member_cannot_be_asked() -> None:
    a, b = pair()
    a.tell()
    run = a.store.find_run("r-1")
    assert run is not None
    both = [a, b]
    assert isinstance(members(run, both)[1].problem, Forgotten)  # type: ignore[arg-type]
    assert "not in your list of hosts" in str(members(run, [a])[1].problem)  # type: ignore[list-item]
    b.view.host_id = "another"
    assert isinstance(members(run, both)[1].problem, OtherMachine)  # type: ignore[arg-type]
    b.live = False
    a.store.set_link("b", Link.UNREACHABLE, "b did not answer within 10 s.")
    problem = members(run, both)[1].problem  # type: ignore[arg-type]
    assert isinstance(problem, HostError)
    assert problem.message == "b did not answer within 10 s."


# --- stop and restart --------------------------------------------------------------------------------------


async def stop(hosts: list[Host]) -> group_stop.StoppedEverywhere:
    run = hosts[0].store.find_run("r-1")
    assert run is not None
    there: Any = hosts
    return await group_stop.stop(
        members(run, there), leftovers(run, there), "r-1", "me", None, lambda _host, _stage: None
    )


async def test_stop_goes_to_all_that_can_be_asked_and_names_the_others() -> None:
    a, b = pair(stop={"state": "stopped", "reaped": [7]})
    a.tell()
    b.tell()
    done = await stop([a, b])
    assert (done.state, done.reaped, list(done.hosts), done.failed) == ("stopped", 2, ["a", "b"], {})
    b.live = False
    a.store.set_link("b", Link.UNREACHABLE, "b is gone.")
    done = await stop([a, b])
    complaint = group_stop.complaint("r-1", done)
    assert (list(done.hosts), list(done.failed), complaint.exit_code) == (["a"], ["b"], 3)
    assert "Its ranks there may go on" in complaint.message


async def test_an_interrupted_stop_still_reaches_all() -> None:
    a, b = pair(stop={"state": "stopped", "reaped": []})
    a.tell()
    b.tell()
    ask, heard = b.request, asyncio.Event()

    async def slow(method: str, params: dict[str, Any], timeout: float = 30) -> dict[str, Any]:
        heard.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return await ask(method, params, timeout)

    b.request = slow  # type: ignore[method-assign]
    stopping = asyncio.create_task(stop([a, b]))
    await heard.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert a.asked == b.asked == ["stop"]


async def test_stop_ends_an_older_attempt_on_a_host_that_was_left_out() -> None:
    a, b = pair(stop={"state": "stopped", "reaped": []})
    a.tell(attempt=2, nodes=NODES[:1])
    b.tell(attempt=1)
    assert list((await stop([a, b])).hosts) == ["a", "b"]


async def restart(hosts: list[Host], *without: str, attempt: int | None = None) -> None:
    run = hosts[0].store.find_run("r-1")
    assert run is not None
    there: Any = hosts
    await group_restart.restart(
        members(run, there),
        [],
        "r-1",
        "me",
        without=without,
        attempt=attempt,
        progress=lambda _host, _stage: None,
    )


def known(attempt: int) -> dict[str, Any]:
    """What a host answers that is asked what the run was launched with."""
    return {"spec": json.loads(json.dumps(wire.to_json(SPEC))), "attempt": attempt}


async def test_of_two_restarts_at_once_the_later_one_is_refused() -> None:
    a, b = pair(spec=known(1), b_spec=known(2))
    a.tell()
    b.tell()
    with pytest.raises(RequestRefused, match="Attempt 2 of r-1 was begun meanwhile") as refused:
        await restart([a, b], attempt=1)
    assert refused.value.code == "superseded"
    assert "stop" not in a.asked + b.asked


async def test_a_restart_that_is_overtaken_while_it_stops_begins_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = RequestRefused("superseded", "attempt 2 of r-1 was begun meanwhile by ben")
    a, b = pair(
        spec=known(1),
        stop={"state": "stopped", "reaped": []},
        b_stop=late,
    )
    a.tell()
    b.tell()

    async def arranged(*_: Any) -> SimpleNamespace:
        return SimpleNamespace(sessions=[a, b])

    monkeypatch.setattr(arrange, "arrange", arranged)
    with pytest.raises(RequestRefused) as refused:
        await restart([a, b], attempt=1)
    assert refused.value is late
    assert a.params["stop"]["attempt"] == b.params["stop"]["attempt"] == 1
    assert "prepare" not in a.asked + b.asked


async def test_restart_refuses_to_leave_somebody_out_by_itself() -> None:
    a, b = pair()
    a.tell()
    b.tell()
    b.live = False
    a.store.set_link("b", Link.UNREACHABLE, "b is gone.")
    with pytest.raises(group_restart.CannotGoOn) as refused:
        await restart([a, b])
    assert "encamp restart r-1 --without b" in refused.value.hint
    assert a.asked == []
    with pytest.raises(UsageError, match="c is not a host of r-1"):
        await restart([a, b], "c")
    with pytest.raises(UsageError, match="No host of r-1 is left"):
        await restart([a, b], "a", "b")


async def test_a_host_cannot_have_something_else_executed_on_another() -> None:
    spec = json.loads(json.dumps(wire.to_json(SPEC)))
    known = {"spec": spec, "attempt": 1, "placement": None}
    a, b = pair(spec=known, b_spec={**known, "spec": {**spec, "target": "evil.py"}, "attempt": 9})
    a.tell()
    b.tell()
    with pytest.raises(EncampError, match="b and a tell different things"):
        await restart([a, b])
    assert a.asked == ["spec"]


def test_patience_is_shorter_than_a_prepared_host_waits() -> None:
    assert bringup.PATIENCE_SECONDS < 30
