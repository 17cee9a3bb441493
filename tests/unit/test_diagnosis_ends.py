"""Verdicts on ranks that are over: how memory grew, what the log says, what NCCL says of its ranks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_diagnosis import SLEEPS, evidence, waiting

from agent.diagnosis import diagnose, memory, ras
from agent.diagnosis.evidence import Host, Memory, Rank
from agent.signals import words

GB = 2**30

GREW = tuple(
    Memory(1000.0 + second, round((0.6 + 0.0825 * max(0, second - 20)) * GB)) for second in range(61)
)
"""Twenty seconds of 0.6 GB, then a line up to 3.9 GB."""

KILLED = Rank(1, "a", "exited", exit_code=-9, ended=1061.0, memory=GREW)

GLOO = """\
step 11
terminate called after throwing an instance of 'gloo::IoException'
  what():  [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5021
Fatal Python error: Aborted
"""

WATCHDOG = """\
[rank0]:[E1130 22:00:00 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: Work\
NCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=200) ran for 600029 milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
"""

REPORT = """\
NCCL version 2.26.2 compiled with CUDA 12.8
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""


def test_out_of_memory_says_how_memory_grew_and_what_the_limit_is() -> None:
    host = Host("a", True, memory_limit_bytes=4 * GB, oom_kills=1)
    found = diagnose(evidence(waiting(0), KILLED, hosts=(host,)))
    assert (found.verdict, found.culprits) == ("out-of-memory", (1,))
    assert found.sentence == (
        "rank 1 on a ran out of memory: it grew from 0.6 GB to 3.9 GB in 40 s; the limit is 4.0 GB"
    )
    assert found.evidence[0].text == ("rank 1 on a grew from 0.6 GB to 3.9 GB in 40 s; the limit is 4.0 GB")
    assert (found.evidence[0].rank, found.evidence[0].signal) == (1, "memory")
    assert "the kernel killed 1 for want of memory" in [finding.text for finding in found.evidence]


def test_growth_is_from_where_it_began() -> None:
    found = memory.growth(GREW)
    assert found is not None
    assert (round(found.low / GB, 1), round(found.high / GB, 1), found.seconds) == (0.6, 3.9, 40.0)
    flat = tuple(Memory(float(second), 3 * GB) for second in range(30))
    assert memory.growth(flat) is None
    assert memory.growth(GREW[:1]) is None
    dropped = (*GREW, Memory(1062.0, GB // 10))
    assert memory.growth(dropped) == found, "what it had after its peak is of no interest"


@given(st.lists(st.builds(Memory, st.floats(0, 1e10), st.integers(0, 2**50))))
def test_no_history_is_too_strange(points: list[Memory]) -> None:
    memory.words(dataclasses.replace(KILLED, memory=tuple(points)), None)


def test_without_a_history_the_end_is_told() -> None:
    host = Host("a", True, oom_kills=1)
    bare = dataclasses.replace(KILLED, memory=())
    assert diagnose(evidence(bare, hosts=(host,))).sentence.endswith("out of memory: was killed by signal 9")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            GLOO,
            "gloo::IoException: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
            "Connection closed by peer [127.0.0.1]:5021",
        ),
        (WATCHDOG, WATCHDOG.splitlines()[0]),
        ("all is well\nstep 12\n", ""),
        (
            "\x1b[31mCUDA error: an illegal memory access\x1b[0m",
            "[31mCUDA error: an illegal memory access [0m",
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"),
    ],
)
def test_the_line_of_a_log_that_tells(log: str, said: str) -> None:
    assert words.in_text(log) == said


@given(st.text())
def test_no_log_is_too_strange(text: str) -> None:
    said = words.in_text(text + " CUDA error " + text)
    assert len(said) <= words.MAX_LINE and said.isprintable()


def test_an_abort_that_the_log_explains_is_a_consequence_and_its_line_evidence() -> None:
    lost = Rank(0, "a", "exited", exit_code=-6, ended=990.0, last_words=words.in_text(GLOO))
    first = Rank(1, "a", "exited", exit_code=3, ended=995.0, error_type="ValueError", error_message="no")
    found = diagnose(evidence(lost, first))
    assert (found.verdict, found.culprits) == ("exited-early", (1,))
    alone = diagnose(evidence(lost))
    assert (alone.verdict, alone.culprits) == ("dead", (0,))
    assert "Connection closed by peer" in alone.sentence
    assert [finding.signal for finding in alone.evidence] == ["exit", "log"]


def test_what_nccl_says_stands_with_the_evidence() -> None:
    hosts = Host("a", True), Host("b", True, nccl_ras=REPORT)
    found = diagnose(evidence(waiting(0), dataclasses.replace(SLEEPS, host="b"), hosts=hosts))
    assert (found.verdict, found.culprits) == ("collective-missing", (1,))
    assert (found.evidence[-1].signal, found.evidence[-1].text) == (
        "nccl-ras",
        "NCCL: INCOMPLETE; Missing communicator data from 1 job process; "
        "Process 3487984 on node 172.16.64.213 managing GPU 5; "
        "TIMEOUT; Encountered 2 communication timeouts while gathering communicator data",
    )
    well = diagnose(evidence(waiting(0), SLEEPS, hosts=(Host("a", True, nccl_ras="Errors\n======\n\n"),)))
    assert well.evidence[-1].text == "NCCL: it reports no error"
    going = waiting(0, step_age=0.1), waiting(1, step_age=0.1)
    assert diagnose(evidence(*going, hosts=hosts)).evidence == ()


@given(st.text())
def test_no_report_is_too_strange(text: str) -> None:
    assert len(ras.trouble("Errors\n====\n" + text)) <= ras.MAX_TEXT
