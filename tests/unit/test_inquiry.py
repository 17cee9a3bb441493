"""What a host says by itself of a rank that has failed, and what it keeps of an attempt's rhythm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent import inquiry, wire
from agent.attempt import Attempt


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    found = Attempt(str(tmp_path), "run-1", 1)
    for rank in range(3):
        Path(found.dir, f"rank{rank}").mkdir(parents=True)
    return found


def fail(attempt: Attempt, rank: int, kind: str, message: str, at: float) -> None:
    """Leave behind what a rank does whose program ends with an error."""
    path = Path(attempt.dir, f"rank{rank}", "error.json")
    path.write_text(json.dumps({"type": kind, "message": message, "traceback": ""}))
    os.utime(path, (at, at))


def samples(*states: str, codes: tuple[int | None, ...] = (None,) * 3) -> list[wire.RankSample]:
    return [
        wire.RankSample(rank, rank, state, exit_code=code)
        for rank, (state, code) in enumerate(zip(states, codes, strict=True))
    ]


RUNNING = samples("running", "running", "running")


def test_nothing_while_all_run_or_have_ended_well(attempt: Attempt) -> None:
    assert inquiry.failing(attempt, RUNNING) == ""
    assert inquiry.failing(attempt, samples("exited", "running", "starting", codes=(0, None, None))) == ""


def test_an_error_counts_before_the_process_is_over_and_consequences_do_not(attempt: Attempt) -> None:
    fail(attempt, 0, "RuntimeError", "Connection closed by peer", at=1000.5)
    assert inquiry.failing(attempt, RUNNING) == "", "whatever it follows from is not known yet"
    fail(attempt, 2, "KeyError", "'lr'", at=1000.0)
    assert inquiry.failing(attempt, RUNNING) == "rank 2 failed first: KeyError: 'lr'"


def test_of_several_the_earliest_counts(attempt: Attempt) -> None:
    fail(attempt, 0, "ValueError", "late", at=1001.0)
    fail(attempt, 1, "ValueError", "early", at=1000.0)
    assert inquiry.failing(attempt, RUNNING) == "rank 1 failed first: ValueError: early"


def test_who_left_without_a_word_comes_before_what_follows_from_it(attempt: Attempt) -> None:
    path = Path(attempt.dir, "rank1", "exit.json")
    path.write_text('{"code": 0}')
    os.utime(path, (1000.0, 1000.0))
    fail(attempt, 0, "RuntimeError", "Connection closed by peer", at=1000.5)
    said = inquiry.failing(attempt, samples("running", "exited", "running", codes=(None, 0, None)))
    assert said.startswith("rank 1 ended without an error before the others, which then failed: RuntimeError")


def test_a_rank_that_is_gone_without_a_word(attempt: Attempt) -> None:
    said = inquiry.failing(attempt, samples("running", "lost", "running"))
    assert said.startswith("rank 1 is gone without a word")
    ended = samples("running", "running", "exited", codes=(None, None, 3))
    assert inquiry.failing(attempt, ended) == "rank 2 failed first: ended with code 3"
    assert inquiry.failing(attempt, samples("running", "running", "exited", codes=(None, None, -15))) == ""


def test_of_ranks_that_were_all_killed_none_is_named_until_the_launcher_tells(attempt: Attempt) -> None:
    """The launcher kills the others at once: both may be gone when somebody looks again."""
    assert inquiry.failing(attempt, samples("lost", "lost", "running")) == ""
    fail(attempt, 2, "ValueError", "as a peer is gone", at=1000.0)
    assert inquiry.failing(attempt, samples("running", "lost", "running")) == ""


def test_a_killed_rank_comes_before_one_whose_library_gave_up(attempt: Attempt) -> None:
    last = ("terminate called after throwing an instance of 'E'", "  what():  Connection closed by peer")
    Path(attempt.dir, "rank0.log").write_text("\n".join(last))
    said = inquiry.failing(attempt, samples("lost", "lost", "running"))
    assert said.startswith("rank 1 is gone without a word")


@pytest.mark.parametrize("text", ["", "[]", '{"type": 7}', "{" * 100])
def test_an_odd_record_is_no_harm(attempt: Attempt, text: str) -> None:
    Path(attempt.dir, "rank1", "error.json").write_text(text)
    assert inquiry.failing(attempt, RUNNING) in ("", "rank 1 failed first: 7")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"usual": "x"}', '{"usual": -1}', '{"usual": 1e9}', '{"usual": true}']
)
def test_a_rhythm_is_kept_and_an_odd_one_is_none(attempt: Attempt, text: str) -> None:
    inquiry.keep_rhythm(attempt, 4.5)
    assert inquiry.kept_rhythm(attempt) == 4.5
    Path(attempt.dir, inquiry.RHYTHM).write_text(text)
    assert inquiry.kept_rhythm(attempt) == 0.0


def test_no_rhythm_is_kept_of_an_attempt_that_was_removed(tmp_path: Path) -> None:
    gone = Attempt(str(tmp_path), "gone", 1)
    inquiry.keep_rhythm(gone, 4.5)
    assert inquiry.kept_rhythm(gone) == 0.0
