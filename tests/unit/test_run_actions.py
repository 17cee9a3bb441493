"""Actions on runs when the link breaks under them, and what is said about a run that failed."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from agent import wire
from profiles import schema
from tui.fleet import run_watch, runs
from tui.fleet.code import Archive
from tui.fleet.errors import EncampError, HostError, RequestRefused, Unreachable
from tui.fleet.hosts import Host
from tui.fleet.session import LogRange
from tui.fleet.store import Link, NodeView, Store

LAUNCHED = {
    "run": "r-1", "attempt": 1, "world_size": 2, "nproc_per_node": 2, "python": "/py",
    "argv": ["/py", "x.py"], "env": {"A": "1"}, "cwd": "/home",
}  # fmt: skip

Answer = dict[str, Any] | Exception | Callable[[dict[str, Any]], dict[str, Any]]


def run_info(state: str = "running", attempt: int = 1, **fields: Any) -> wire.Run:
    values: dict[str, Any] = {
        "run": "r-1", "name": "r", "profile": "p", "strategy": "ddp", "attempt": attempt, "state": state,
        "reason": "", "created": 1.0, "started": 2.0, "ended": None, "world_size": 2, "nproc_per_node": 2,
        "python": "/py", "command": ("/py", "x.py"), "cwd": "/home",
    }  # fmt: skip
    return wire.Run(**values | fields)


class FakeSession:
    """A session whose agent answers from a list, method by method."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.host = Host("box", "box.example")
        self.name = "box"
        self.store = Store()
        self.view = self.store.add_host("box", "box.example")
        self.store.set_link("box", Link.LIVE)
        self.view.ready = True
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.reconnects = 0
        self.on_reconnect: Callable[[], None] = lambda: None
        self.logs: dict[str, bytes] = {}

    def tell(self, message: wire.Message) -> None:
        self.store.apply("box", message)

    def check(self) -> None: ...

    async def connected(self, timeout: float | None = None) -> None:
        self.reconnects += 1
        self.on_reconnect()

    async def request(self, method: str, params: dict[str, Any], timeout: float = 30) -> dict[str, Any]:
        self.asked.append((method, params))
        answer = self.answers[method].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(params) if callable(answer) else answer

    async def read_log(self, run: str, attempt: int, stream: str, offset: int, length: int) -> LogRange:
        data = self.logs[stream]
        return LogRange(max(0, len(data) + offset), data[offset:], len(data), True)


def lost() -> Unreachable:
    return Unreachable("lost")


SPEC = wire.LaunchSpec("r-1", "r", "p", "ddp", "script", "x.py")


# --- ids and specs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "My Run!", "ünïcode", "", "-.-", "a" * 200, "x/../y", "CON\x1b[0m"])
def test_every_name_makes_an_id_that_all_parts_accept(name: str) -> None:
    ids = {runs.new_run_id(name) for _ in range(20)}
    assert len(ids) == 20
    assert all(wire.RUN_ID.match(run_id) for run_id in ids)


def test_a_profile_becomes_a_spec() -> None:
    profile = schema.parse(
        '[run]\nscript = "train.py"\nargs = ["--lr", "1"]\ncwd = "work"\nstop_grace_seconds = 7\n'
        "stall_seconds = 40\n"
        '[env]\nA = "b"\n',
        "trial.toml",
    )
    spec = runs.spec_from_profile(profile, "r-1", extra=["--more"])
    assert spec == wire.LaunchSpec(
        run="r-1", name="trial", profile="trial", strategy="ddp", target_kind="script", target="train.py",
        args=("--lr", "1", "--more"), cwd="work", nproc_per_node=0, python="auto", env={"A": "b"}, code=(),
        stop_grace_seconds=7.0, stall_seconds=40.0,
    )  # fmt: skip
    assert runs.spec_from_profile(profile, "r-1", name="other").name == "other"


def test_a_task_takes_the_trainer_with_it() -> None:
    profile = schema.parse('[run]\ntask = "gpt"\n[train]\nsteps = 5\n', "t.toml")
    spec = runs.spec_from_profile(profile, "r-1")
    assert (spec.target_kind, spec.target) == ("task", "trainer")
    assert spec.args[-2:] == ("--steps", "5")
    assert spec.code == (runs.trainer_archive().ref,)


def test_the_command_line_can_be_pasted_into_a_shell() -> None:
    start = ("/py", "-m", "torch.distributed.run")
    argv = (*start, "--log-dir", "/a/torchrun", "/a/rank.py", "script", "it's", "$x")
    result = runs.LaunchResult(
        "r", 1, 2, 2, "/py", argv, {"B": "two words", "ENCAMP_RUN": "r"}, "/home/my folder"
    )
    assert shlex.split(result.command_line) == [
        "cd", "/home/my folder", "&&", "env", "B=two words", "ENCAMP_RUN=r", *argv
    ]  # fmt: skip
    assert shlex.split(result.by_hand()) == [
        "cd", "/home/my folder", "&&", "env", "B=two words", *start, "it's", "$x"
    ]  # fmt: skip
    module = runs.LaunchResult("r", 1, 2, 2, "/py", ("/py", "/a/rank.py", "module", "pkg", "x"), {}, "/")
    assert module.by_hand() == "cd / && /py -m pkg x"


def test_what_our_launcher_starts_can_be_tried_without_it() -> None:
    folder = "/h/.encamp/runs/r/attempts/1"
    program = (f"{folder}/rank.py", "script", "x.py", "--lr", "1")
    tried = {}
    for role in ("horovod", "tf-mirrored"):
        argv = ("/py", "-u", f"{folder}/process_launcher.py", role, "--nproc", "4", "--", *program)
        tried[role] = runs.LaunchResult("r", 1, 4, 4, "/py", argv, {}, "/w").by_hand()
    assert tried == {
        "horovod": "cd /w && /py -m horovod.runner.launch --gloo -np 4 /py x.py --lr 1",
        "tf-mirrored": "cd /w && /py x.py --lr 1",
    }


def test_what_is_tried_by_hand_is_in_a_copy_of_the_project() -> None:
    env = {"ENCAMP_HOME": "/h/.encamp", "ENCAMP_RUN_DIR": "/h/.encamp/runs/r-1"}
    argv = ("/py", "/a/rank.py", "script", "x.py")
    result = runs.LaunchResult("r-1", 1, 2, 2, "/py", argv, env, "/h/.encamp/runs/r-1/code/sub")
    assert result.by_hand("abc") == "cp -r /h/.encamp/code/abc /tmp/r-1 && cd /tmp/r-1/sub && /py x.py"
    elsewhere = dataclasses.replace(result, cwd="/data")
    assert elsewhere.by_hand("abc") == elsewhere.by_hand() == "cd /data && /py x.py"


# --- launch, stop, restart ---------------------------------------------------------------------------------


async def test_a_launch_that_was_heard_before_the_link_broke_is_not_a_second_one() -> None:
    session = FakeSession(launch=[lost(), lost(), RequestRefused("exists", "there is one")])
    session.on_reconnect = lambda: session.tell(run_info())
    result = await runs.launch(session, SPEC, "me")  # type: ignore[arg-type]
    assert (result.run, result.attempt, result.world_size) == ("r-1", 1, 2)


async def test_a_launch_that_was_not_heard_is_asked_for_again() -> None:
    session = FakeSession(launch=[lost(), lost(), LAUNCHED])
    result = await runs.launch(session, SPEC, "me")  # type: ignore[arg-type]
    assert result.argv == ("/py", "x.py")
    assert session.reconnects == 1


async def test_a_refused_launch_is_not_repeated() -> None:
    session = FakeSession(launch=[RequestRefused("exists", "there is one")])
    with pytest.raises(RequestRefused):
        await runs.launch(session, SPEC, "me")  # type: ignore[arg-type]


async def test_an_answer_that_makes_no_sense_is_a_sentence() -> None:
    session = FakeSession(launch=[{**LAUNCHED, "argv": "x"}])
    with pytest.raises(EncampError, match="makes no sense"):
        await runs.launch(session, SPEC, "me")  # type: ignore[arg-type]


async def test_stopping_goes_on_across_a_break() -> None:
    session = FakeSession(stop=[lost(), {"state": "stopped", "reaped": [7, "x"]}])
    assert await runs.stop(session, "r-1", "me", 2.5) == {"state": "stopped", "reaped": [7]}  # type: ignore[arg-type]
    assert [params["grace_seconds"] for _, params in session.asked] == [2.5, 2.5]
    session = FakeSession(stop=[{"state": "stopped", "reaped": []}])
    await runs.stop(session, "r-1", "me")  # type: ignore[arg-type]
    assert "grace_seconds" not in session.asked[0][1]


async def test_a_restart_that_was_heard_is_not_repeated() -> None:
    session = FakeSession(restart=[lost()])
    session.tell(run_info(attempt=3))
    session.on_reconnect = lambda: session.tell(run_info("starting", attempt=4))
    assert (await runs.restart(session, "r-1", "me")).attempt == 4  # type: ignore[arg-type]


async def test_a_restart_that_was_not_heard_is_asked_for_again() -> None:
    session = FakeSession(restart=[lost(), {**LAUNCHED, "attempt": 4}])
    session.tell(run_info(attempt=3))
    assert (await runs.restart(session, "r-1", "me", attempt=3)).attempt == 4  # type: ignore[arg-type]
    assert [params["attempt"] for _, params in session.asked] == [3, 3]


# --- upload ------------------------------------------------------------------------------------------------


async def test_code_goes_up_in_pieces_and_goes_on_where_it_broke() -> None:
    data = bytes(range(256)) * 1200
    archive = Archive(wire.CodeRef(hashlib.sha256(data).hexdigest(), "trainer"), data)
    stored = bytearray()

    def put(params: dict[str, Any]) -> dict[str, Any]:
        if params["offset"] == len(stored):
            stored.extend(base64.b64decode(params["data"]))
        return {"received": len(stored), "present": len(stored) == params["size"]}

    session = FakeSession(blob_has=[{"present": False}], blob_put=[put, lost(), *[put] * 9])
    await runs.upload_code(session, archive)  # type: ignore[arg-type]
    assert stored == data
    assert session.reconnects == 1
    session = FakeSession(blob_has=[{"present": True}])
    await runs.upload_code(session, archive)  # type: ignore[arg-type]


async def test_a_host_that_takes_no_code_does_not_keep_us_for_ever() -> None:
    archive = Archive(wire.CodeRef("0" * 64, "trainer"), b"data")
    session = FakeSession(blob_has=[{}], blob_put=[{"received": -1}])
    with pytest.raises(EncampError, match="does not take"):
        await runs.upload_code(session, archive)  # type: ignore[arg-type]


# --- waiting -----------------------------------------------------------------------------------------------


async def test_waiting_ends_with_the_state_or_any_end() -> None:
    session = FakeSession()
    session.tell(run_info("starting"))
    waiting = asyncio.create_task(run_watch.wait(session, "r-1", ("running",)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not waiting.done()
    session.tell(run_info("failed"))
    assert (await waiting).info.state == "failed"


async def test_an_old_attempt_does_not_count() -> None:
    session = FakeSession()
    session.tell(run_info("failed", attempt=1))
    with pytest.raises(run_watch.Timeout):
        await run_watch.wait(session, "r-1", ("running",), attempt=2, timeout=0.05)  # type: ignore[arg-type]
    session.tell(run_info("running", attempt=2))
    assert (await run_watch.wait(session, "r-1", ("running",), attempt=2)).info.attempt == 2  # type: ignore[arg-type]


async def test_a_run_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(run_watch.NoSuchRun):
        await run_watch.wait(FakeSession(), "r-1", ("running",))  # type: ignore[arg-type]


async def test_what_needs_a_person_ends_the_wait() -> None:
    session = FakeSession()
    session.tell(run_info("running"))

    def check() -> None:
        raise HostError("the key has changed")

    session.check = check  # type: ignore[method-assign]
    with pytest.raises(HostError, match="key"):
        await run_watch.wait(session, "r-1", ())  # type: ignore[arg-type]


# --- failures ----------------------------------------------------------------------------------------------


def with_ranks(session: FakeSession, *codes: int | None) -> NodeView:
    samples = [
        wire.RankSample(rank, rank, "lost" if code is None else "exited", exit_code=code)
        for rank, code in enumerate(codes)
    ]
    session.tell(wire.Ranks("r-1", 1, 3.0, tuple(samples)))
    return session.view.runs["r-1"]


@pytest.mark.parametrize(
    ("codes", "stream"),
    [
        ((0, 1), "rank1"),
        ((-15, 1, -15), "rank1"),
        ((-9, -15, 3), "rank2"),
        ((-15, -15), "rank0"),
        ((None, None), "launcher"),
    ],
)
async def test_the_rank_that_failed_by_itself_is_quoted(codes: tuple[int | None, ...], stream: str) -> None:
    session = FakeSession()
    session.tell(run_info("failed", reason="rank 1 raised ValueError"))
    view = with_ranks(session, *codes)
    session.logs = {f"rank{rank}": b"words of %d\n" % rank for rank in range(3)} | {"launcher": b"torchrun\n"}
    failure = await run_watch.failure(session, view)  # type: ignore[arg-type]
    assert failure.stream == stream
    assert failure.tail == session.logs[stream].decode().strip()
    assert "ValueError" in failure.message
    assert "encamp logs r-1" in failure.hint
    assert failure.exit_code == 1


async def test_ranks_that_die_in_their_first_moments_have_not_started() -> None:
    session = FakeSession()
    session.tell(run_info("running"))
    starting = asyncio.create_task(run_watch.started(session, "r-1", 1))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with_ranks(session, 0, 1)
    await asyncio.sleep(2 * run_watch.POLL_SECONDS)
    assert not starting.done(), "torchrun has not given up yet"
    session.tell(run_info("failed"))
    session.logs = {"rank1": b"ImportError\n"}
    with pytest.raises(run_watch.RunFailed) as caught:
        await starting
    assert caught.value.tail == "ImportError"


async def test_started_is_the_run_or_why_it_did_not_start() -> None:
    session = FakeSession()
    session.tell(run_info("finished"))
    assert (await run_watch.started(session, "r-1", 1)).info.state == "finished"  # type: ignore[arg-type]
    session.tell(run_info("failed"))
    with_ranks(session, 1, 1)
    session.logs = {"rank0": b"", "launcher": b"out of luck\n"}
    with pytest.raises(run_watch.RunFailed) as caught:
        await run_watch.started(session, "r-1", 1)  # type: ignore[arg-type]
    assert (caught.value.stream, caught.value.tail) == ("launcher", "out of luck"), (
        "an empty log says nothing"
    )
