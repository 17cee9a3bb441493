"""The verdict is a pure function of what the ranks show: a case for each rule, and nothing makes it raise."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import typed
from agent.diagnosis import VERDICTS, Diagnosis, diagnose
from agent.diagnosis.evidence import (
    Child,
    Collective,
    Evidence,
    Frame,
    Gpu,
    Group,
    Host,
    Rank,
    Thread,
)

PACKAGES = "/venv/lib/python3.11/site-packages"
REDUCE = Frame(f"{PACKAGES}/torch/distributed/distributed_c10d.py", 3252, "all_reduce", False)
BACKWARD = Frame(f"{PACKAGES}/torch/autograd/graph.py", 979, "_engine_run_backward", False)
LOADER = Frame(f"{PACKAGES}/torch/utils/data/dataloader.py", 1284, "_try_get_data", False)
SAVING = Frame(f"{PACKAGES}/torch/serialization.py", 963, "save", False)
SPAWN = Frame(f"{PACKAGES}/torch/multiprocessing/spawn.py", 164, "join", False)
JOIN = Frame("/usr/lib/python3.11/threading.py", 1112, "join", False)


def user(function: str = "train", line: int = 12, source: str = "") -> Frame:
    return Frame("/work/train.py", line, function, True, source)


def main(*frames: Frame) -> tuple[Thread, ...]:
    return (Thread("", True, frames),)


def entry(
    sequence: int,
    *,
    shape: str = "10x20 float",
    retired: bool = True,
    name: str = "all_reduce",
    at: float = 0,
) -> Collective:
    return Collective(sequence, f"gloo:{name}", shape, at or float(sequence), retired)


def group(enqueued: int, completed: int, **pending: Any) -> tuple[Group, ...]:
    recent = tuple(entry(number) for number in range(max(1, completed - 5), completed + 1))
    if enqueued > completed:
        recent += (entry(enqueued, retired=False, **pending),)
    return (Group("0", "default_pg", (), enqueued, completed, recent),)


def waiting(number: int, enqueued: int = 12, host: str = "a", **more: Any) -> Rank:
    """A rank that is in a collective."""
    values: dict[str, Any] = {
        "pid": 100 + number,
        "process_state": "S",
        "wait_channel": "futex_do_wait",
        "main_cpu_share": 0.0,
        "step": 11,
        "step_age": 9.0,
        "step_seconds": 0.5,
        "threads": main(REDUCE, user()),
        "groups": group(enqueued, enqueued - 1),
        "recorded": True,
    }
    return Rank(number, host, "running", **(values | more))


def elsewhere(number: int, *frames: Frame, host: str = "a", **more: Any) -> Rank:
    """A rank that has not called the collective."""
    values: dict[str, Any] = {
        "groups": group(11, 11),
        "threads": main(*frames),
        "wait_channel": "hrtimer_nanosleep",
    }
    return waiting(number, host=host, **(values | more))


def evidence(*ranks: Rank, hosts: tuple[Host, ...] = (), allowed: float = 3.0) -> Evidence:
    names = dict.fromkeys(rank.host for rank in ranks)
    return Evidence(
        run="r",
        attempt=1,
        time=1000.0,
        world_size=len(ranks),
        window_seconds=1.0,
        ranks=ranks,
        hosts=hosts or tuple(Host(name, True) for name in names),
        allowed_seconds=allowed,
    )


def without_record(rank: Rank) -> Rank:
    return dataclasses.replace(rank, groups=(), recorded=False)


SLEEPS = elsewhere(1, user("step", 7, "time.sleep(60)"))
HELD = user("step", 7, "with lock:")

CASES: dict[str, tuple[Evidence, str, tuple[int, ...]]] = {
    "one sleeps": (evidence(waiting(0), SLEEPS), "collective-missing", (1,)),
    "two of four sleep": (
        evidence(waiting(0), SLEEPS, waiting(2), dataclasses.replace(SLEEPS, rank=3)),
        "collective-missing",
        (1, 3),
    ),
    "one sleeps in what also evaluates": (
        evidence(waiting(0), elsewhere(1, user("pause", 7, "time.sleep(60)"), user("train_and_evaluate"))),
        "collective-missing",
        (1,),
    ),
    "one left, and the other waits for it": (
        evidence(waiting(0), Rank(1, "a", "exited", exit_code=0, ended=990.0)),
        "exited-early",
        (1,),
    ),
    "one sleeps, without a record": (
        evidence(without_record(waiting(0, threads=main(BACKWARD, user()))), without_record(SLEEPS)),
        "collective-missing",
        (1,),
    ),
    "other sizes": (
        evidence(waiting(0), waiting(1), waiting(2, groups=group(12, 11, shape="5 float"))),
        "collective-mismatch",
        (2,),
    ),
    "another collective": (
        evidence(waiting(0), waiting(1, groups=group(12, 11, name="broadcast"))),
        "collective-mismatch",
        (0, 1),
    ),
    "stopped": (evidence(waiting(0), dataclasses.replace(SLEEPS, process_state="T")), "stopped", (1,)),
    "in the kernel": (
        evidence(waiting(0), elsewhere(1, user(), process_state="D", wait_channel="nfs_wait_bit_killable")),
        "kernel-wait",
        (1,),
    ),
    "the disk": (
        evidence(
            waiting(0), elsewhere(1, SAVING, user("main"), process_state="D", wait_channel="io_schedule")
        ),
        "slow-storage",
        (1,),
    ),
    "gone": (evidence(waiting(0), Rank(1, "a", "lost")), "dead", (1,)),
    "a zombie": (evidence(waiting(0), dataclasses.replace(SLEEPS, process_state="Z")), "dead", (1,)),
    "left early": (evidence(waiting(0), Rank(1, "a", "exited", exit_code=0)), "exited-early", (1,)),
    "killed for memory": (
        evidence(waiting(0), Rank(1, "a", "lost"), hosts=(Host("a", True, oom_kills=1),)),
        "out-of-memory",
        (1,),
    ),
    "out of the GPU's memory": (
        evidence(
            Rank(0, "a", "exited", exit_code=-15),
            Rank(
                1,
                "a",
                "exited",
                exit_code=1,
                error_type="OutOfMemoryError",
                error_message="CUDA out of memory.",
            ),
        ),
        "out-of-memory",
        (1,),
    ),
    "raised first": (
        evidence(
            Rank(
                0,
                "a",
                "exited",
                exit_code=1,
                ended=99.0,
                error_type="RuntimeError",
                error_message="Connection closed by peer",
            ),
            Rank(
                1, "a", "exited", exit_code=1, ended=99.5, error_type="ValueError", error_message="bad sample"
            ),
        ),
        "exited-early",
        (1,),
    ),
    "left, and the others lost it": (
        evidence(
            Rank(
                0,
                "a",
                "exited",
                exit_code=1,
                ended=99.5,
                error_type="RuntimeError",
                error_message="Connection closed by peer",
            ),
            Rank(1, "a", "exited", exit_code=0, ended=99.0),
        ),
        "exited-early",
        (1,),
    ),
    "lost its worker": (
        evidence(
            waiting(0),
            Rank(
                1,
                "a",
                "exited",
                exit_code=1,
                error_type="RuntimeError",
                error_message="DataLoader worker (pid 7) is killed by signal: Killed. ",
            ),
        ),
        "data-starved",
        (1,),
    ),
    "raised first by the clocks of two hosts": (
        evidence(
            Rank(0, "a", "exited", exit_code=1, ended=100.0, error_type="ValueError", error_message="x"),
            Rank(1, "b", "exited", exit_code=1, ended=3700.0 - 1, error_type="ValueError", error_message="x"),
            hosts=(Host("a", True), Host("b", True, clock_offset=3600.0)),
        ),
        "exited-early",
        (1,),
    ),
    "the GIL": (
        evidence(waiting(0), elsewhere(1, user(), gil_free=False, main_cpu_share=0.0)),
        "gil-held",
        (1,),
    ),
    "a lock": (
        evidence(waiting(0), elsewhere(1, HELD, wait_channel="futex_do_wait")),
        "thread-deadlock",
        (1,),
    ),
    "a thread": (evidence(waiting(0), elsewhere(1, JOIN, user())), "thread-deadlock", (1,)),
    "no data": (
        evidence(waiting(0), elsewhere(1, LOADER, user(), children=(Child(7, "python", "T"),))),
        "data-starved",
        (1,),
    ),
    "a save": (evidence(waiting(0), elsewhere(1, SAVING, user("main"))), "slow-storage", (1,)),
    "the network": (
        evidence(waiting(0), waiting(1, host="b")),
        "network",
        (),
    ),
    "a spin": (
        evidence(*(waiting(n, gpu=Gpu(n, "ok", 100.0, 120.0, 700.0)) for n in range(2))),
        "gpu-spin",
        (0, 1),
    ),
    "a lost GPU": (evidence(waiting(0), waiting(1, gpu=Gpu(1, "lost"), step_age=0.1)), "gpu-fault", (1,)),
    "no number": (evidence(waiting(0, step_age=0.1, loss="nan"), waiting(1, step_age=0.1)), "nan", (0,)),
    "no host": (
        evidence(waiting(0), waiting(1, host="b"), hosts=(Host("a", True), Host("b", False, 40.0))),
        "host-unreachable",
        (1,),
    ),
    "one rank that sleeps": (
        evidence(without_record(elsewhere(0, user("step", 7, "time.sleep(60)")))),
        "unknown",
        (0,),
    ),
    "all in one collective on one host": (evidence(waiting(0), waiting(1)), "unknown", ()),
    "a stopped rank that came a little later": (
        evidence(waiting(0, step_age=3.1), elsewhere(1, process_state="T", step_age=2.6)),
        "stopped",
        (1,),
    ),
    "one that only talks": (
        evidence(waiting(0), elsewhere(1, user("retry"), log_bytes=10, step_age=61.0)),
        "collective-missing",
        (1,),
    ),
    "one that moves about for ever": (
        evidence(
            waiting(0),
            elsewhere(1, user("a"), earlier=(user("b"), user("c")), main_cpu_share=1.0, step_age=181.0),
        ),
        "collective-missing",
        (1,),
    ),
    "processes of its own, for very long": (
        evidence(elsewhere(0, SPAWN, user(), step=None, step_age=700.0), allowed=0.0),
        "unknown",
        (0,),
    ),
    "a process of its own that is stopped": (
        evidence(elsewhere(0, SPAWN, user(), step=None, step_age=40.0, children=(Child(7, "python", "T"),))),
        "stopped",
        (0,),
    ),
    "one whose program is over and whose process is not": (
        evidence(without_record(elsewhere(0, SAVING, user(), step_age=70.0, ended=935.0))),
        "slow-storage",
        (0,),
    ),
    "all sleep and never took a step": (
        evidence(*(elsewhere(n, user("wait"), step=None, step_age=61.0) for n in range(2))),
        "unknown",
        (0, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_the_culprit(name: str) -> None:
    shown, verdict, culprits = CASES[name]
    found = diagnose(shown)
    assert (found.verdict, found.culprits) == (verdict, culprits), found.sentence
    assert 0 < found.confidence <= 1
    assert found.sentence and found.alarming
    assert {part.rank for part in found.ranks} == {rank.rank for rank in shown.ranks}


HEALTHY: dict[str, Evidence] = {
    "steps": evidence(waiting(0, step_age=0.1), waiting(1, step_age=0.1)),
    "stopped for a moment": evidence(
        waiting(0, step_age=1.0), dataclasses.replace(SLEEPS, process_state="T", step_age=1.0)
    ),
    "an evaluation on one": evidence(waiting(0), elsewhere(1, user("forward", 3), user("evaluate", 40))),
    "a save, as the program says": evidence(waiting(0), elsewhere(1, user("step"), phase="save")),
    "work that moves about": evidence(
        waiting(0), elsewhere(1, user("score"), earlier=(user("other"), user("score")))
    ),
    "processes of its own": evidence(elsewhere(0, SPAWN, user(), step=None, step_age=40.0), allowed=0.0),
    "programs that are over, on a busy machine": evidence(
        Rank(0, "a", "exited", exit_code=0, ended=993.0),
        Rank(1, "a", "running", pid=101, step=25, step_age=8.0, ended=993.1),
    ),
    "work in one place, for now": evidence(waiting(0), elsewhere(1, user("pack"), main_cpu_share=1.0)),
    "output": evidence(waiting(0), elsewhere(1, user("pack"), log_bytes=10)),
    "files": evidence(waiting(0), elsewhere(1, user("pack"), io_bytes=10_000_000)),
    "the start": evidence(waiting(0), SLEEPS, allowed=0.0),
    "over": evidence(Rank(0, "a", "exited", exit_code=0), Rank(1, "a", "exited", exit_code=0)),
    "all compute in one place": evidence(
        *(elsewhere(n, user("pack"), main_cpu_share=1.0, step_age=100.0) for n in range(2))
    ),
    "children that compute": evidence(
        waiting(0), elsewhere(1, LOADER, user(), children=(Child(7, "python", "R", 1.0),))
    ),
    "nothing is known yet": evidence(without_record(elsewhere(0, user("wait"), step_age=100.0)), allowed=0.0),
    "talk, in a run of long pauses": evidence(
        waiting(0), elsewhere(1, user("retry"), log_bytes=10, step_age=300.0), allowed=30.0
    ),
    "nothing to be seen, as at the end": evidence(*(elsewhere(n, step_age=59.0) for n in range(2))),
    "no steps and no waiting": evidence(
        *(elsewhere(n, user("wait"), step=None, step_age=59.0) for n in range(2))
    ),
    "a last save, when the others are over": evidence(
        elsewhere(0, SAVING, user("finish"), io_bytes=10_000_000, step_age=60.0),
        Rank(1, "a", "exited", exit_code=0, ended=940.0),
    ),
    "a last evaluation, when the others are over": evidence(
        elsewhere(0, user("score"), main_cpu_share=1.0, earlier=(user("other"),), step_age=60.0),
        Rank(1, "a", "exited", exit_code=0, ended=940.0),
    ),
    "no steps for an hour, and work": evidence(
        elsewhere(0, user("fit"), main_cpu_share=1.0, step=None, step_age=3600.0), allowed=0.0
    ),
    "a program of its own that works for an hour": evidence(
        elsewhere(0, user("call"), step=None, step_age=3600.0, children=(Child(7, "solver", "R", 1.0),)),
        allowed=0.0,
    ),
    "processes that prepare data for minutes": evidence(
        waiting(0, step=None, step_age=400.0),
        elsewhere(1, JOIN, user("main"), step_age=400.0, children=(Child(7, "python", "R", 1.0),)),
        allowed=0.0,
    ),
    "a machine that gives it no turn": evidence(
        waiting(0), elsewhere(1, user("forward"), process_state="R", runnable=True, main_cpu_share=0.01)
    ),
    "a test in one place": evidence(
        waiting(0, step_age=60.0), elsewhere(1, user("linear"), user("test"), step_age=60.0)
    ),
    "not begun": evidence(Rank(0, "a", "starting"), Rank(1, "a", "starting")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_takes_long_is_no_stall(name: str) -> None:
    found = diagnose(HEALTHY[name])
    assert (found.verdict, found.culprits, found.alarming) == ("healthy", (), False), found.sentence


def test_of_processes_that_a_rank_starts_itself_is_said_what_is_seen() -> None:
    forked = Child(8, "python", "S", 0.0, (user("load", 3), SPAWN, user()))
    children = (Child(7, "python", "S", 0.12), forked)
    parent = elsewhere(0, SPAWN, user(), step=None, step_age=40.0, children=children)
    found = diagnose(evidence(parent, allowed=0.0))
    assert found.sentence == (
        "nothing is known of the progress of this run yet; rank 0 on a waits in train (train.py:12) for "
        "processes that it has started itself, and encamp cannot see what they do"
    )
    texts = [finding.text for finding in found.evidence]
    assert "process 7 uses 12% of a core, and shows no Python stack" in texts
    assert "process 8 is in load (train.py:3)" in texts
    assert "nproc_per_node" in texts[-1]
    busy = dataclasses.replace(parent, children=(Child(7, "python", "R", 0.9),))
    assert diagnose(evidence(busy)).sentence.endswith("encamp cannot see what they do")


def test_of_what_is_stopped_is_said_how_it_goes_on() -> None:
    def said(*ranks: Rank) -> str:
        return " | ".join(finding.text for finding in diagnose(evidence(*ranks)).evidence)

    held = dataclasses.replace(SLEEPS, pid=4711, process_state="T")
    text = said(waiting(0), held)
    assert "process 4711 is stopped (T): SIGCONT lets it go on" in text
    assert f"encamp signal {evidence().run} --rank 1 --signal CONT" in text
    traced = said(waiting(0), dataclasses.replace(held, process_state="t"))
    assert "when the debugger lets it" in traced and "SIGCONT" not in traced
    own = said(elsewhere(0, SPAWN, user(), step=None, step_age=40.0, children=(Child(7, "python", "T"),)))
    assert "process 7 is stopped: on its host, kill -CONT 7 lets it go on" in own


def test_a_slow_rank_is_slow_and_not_stalled() -> None:
    def late(number: int, by: float) -> Rank:
        recent = tuple(entry(n, at=n + by) for n in range(1, 9))
        return waiting(number, step_age=0.1, groups=(Group("0", "default_pg", (), 8, 8, recent),))

    found = diagnose(evidence(late(0, 0.0), late(1, 0.4), late(2, 0.01)))
    assert (found.verdict, found.culprits, found.alarming) == ("straggler", (1,), False)
    assert diagnose(evidence(late(0, 0.0), late(1, 0.05), late(2, 0.01))).verdict == "healthy"


def test_a_clock_that_is_ahead_makes_nobody_slow() -> None:
    def at(number: int, host: str, ahead: float) -> Rank:
        recent = tuple(entry(n, at=n + ahead) for n in range(1, 9))
        return waiting(number, host=host, step_age=0.1, groups=(Group("0", "x", (0, 1), 8, 8, recent),))

    hosts = (Host("a", True), Host("b", True, clock_offset=3600.0))
    assert diagnose(evidence(at(0, "a", 0.0), at(1, "b", 3600.0), hosts=hosts)).verdict == "healthy"


def test_the_sentence_says_who_where_and_what_is_missed() -> None:
    found = diagnose(evidence(waiting(0), SLEEPS))
    assert found.sentence == (
        "rank 1 on a sleeps in step (train.py:7) and never called all_reduce of 10x20 float, "
        "number 12 of default_pg"
    )
    assert [(finding.rank, finding.signal) for finding in found.evidence] == [(1, "stack"), (0, "collective")]
    assert found.since_seconds == 9.0


def test_it_is_the_rank_that_missed_the_collective_and_not_its_worker() -> None:
    rank = elsewhere(1, LOADER, user(), children=(Child(7, "python", "T"),))
    assert diagnose(evidence(waiting(0), rank)).sentence == (
        "rank 1 on a waits for its DataLoader in train (train.py:12); worker 7 is stopped; "
        "the rank itself never called all_reduce of 10x20 float, number 12 of default_pg"
    )


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ((), "rank 1 on a shows no Python stack"),
        ((Frame(f"{PACKAGES}/x/y.py", 3, "ask", False),), "rank 1 on a is in ask (y.py:3)"),
        ((user("step", 7),), "rank 1 on a is in step (train.py:7)"),
    ],
)
def test_the_sentence_is_whole_where_no_line_of_the_program_is_known(
    frames: tuple[Frame, ...], words: str
) -> None:
    rank = elsewhere(1, *frames, wait_channel="")
    assert diagnose(evidence(waiting(0), rank)).sentence.startswith(f"{words} and never called all_reduce")
    alone = diagnose(evidence(dataclasses.replace(without_record(rank), step_age=61.0)))
    assert alone.sentence == f"no progress for 61 s: {words}"


def test_evidence_and_verdict_survive_json() -> None:
    shown = CASES["no data"][0]
    assert typed.from_json(Evidence, _as_decoded(shown)) == shown
    found = diagnose(shown)
    assert typed.from_json(Diagnosis, _as_decoded(found)) == found


def _as_decoded(value: object) -> Any:
    import json

    return json.loads(json.dumps(typed.to_json(value)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.builds(Evidence, ranks=st.lists(st.from_type(Rank), max_size=4).map(tuple)))
def test_no_evidence_is_too_strange(shown: Evidence) -> None:
    found = diagnose(shown)
    assert found.verdict in VERDICTS
    assert set(found.culprits) <= {rank.rank for rank in shown.ranks}
