"""Progress files as programs really leave them: half-written, garbage, endless, begun anew."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import progress, wire
from agent.progress import ProgressTail, history, sanitized, thin


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.jsonl"


def append(path: Path, *records: Any) -> None:
    with path.open("ab") as file:
        for record in records:
            file.write(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n")


def steps(records: list[wire.Record]) -> list[Any]:
    return [record.get("step") for record in records]


def test_new_records_come_once_and_in_order(path: Path) -> None:
    tail = ProgressTail(str(path))
    assert tail.read() == []
    append(path, {"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25})
    assert tail.read() == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}]
    assert tail.read() == []
    append(path, {"step": 3})
    assert tail.read() == [{"step": 3}]
    assert tail.newest == {"step": 3}


def test_a_half_written_line_waits_for_its_end(path: Path) -> None:
    tail = ProgressTail(str(path))
    append(path, {"step": 1}, b'{"step": 2, "lo')
    assert steps(tail.read()) == [1]
    assert tail.read() == []
    append(path, b'ss": 1.5}')
    assert tail.read() == []
    append(path, b"\n")
    assert tail.read() == [{"step": 2, "loss": 1.5}]


def test_what_is_no_record_is_passed_over(path: Path) -> None:
    append(
        path, b"Traceback (most recent call last):\n", b"\x00\xff\xfe\n", b"\n", [1, 2], 7, "text", None, {},
        b'{"step": ' + b"9" * 5000 + b"}\n", b"[" * 5000 + b"\n", {"only": {"nested": 1}}, {"step": 4},
    )  # fmt: skip
    tail = ProgressTail(str(path))
    assert tail.read() == [{"step": 4}]


def test_a_line_without_end_is_passed_over_and_costs_no_memory(path: Path) -> None:
    tail = ProgressTail(str(path))
    append(path, {"step": 1})
    assert steps(tail.read()) == [1]
    for _ in range(5):
        append(path, b"x" * progress.TAIL_BYTES)
        assert tail.read() == []
    append(path, b"\n", {"step": 2})
    assert steps(tail.read()) == [2]


def test_a_file_that_is_begun_anew_is_read_anew(path: Path) -> None:
    tail = ProgressTail(str(path))
    append(path, {"step": 100}, {"step": 101})
    tail.read()
    path.write_bytes(b'{"step": 1}\n')
    assert steps(tail.read()) == [1]
    replacement = path.with_suffix(".new")
    replacement.write_bytes(b'{"step": 7, "x": "longer than what was there"}\n')
    replacement.replace(path)
    assert steps(tail.read()) == [7]
    path.unlink()
    assert tail.read() == []


def test_a_fast_writer_is_followed_at_its_newest(path: Path) -> None:
    tail = ProgressTail(str(path))
    append(path, {"step": 0})
    assert steps(tail.read()) == [0]
    append(path, *({"step": step, "loss": 1 / 3} for step in range(1, 20_001)))
    found = tail.read()
    assert len(found) <= progress.TAIL_RECORDS
    assert found[-1]["step"] == 20_000
    assert steps(found) == sorted(steps(found))
    append(path, {"step": 20_001})
    assert steps(tail.read()) == [20_001]


def test_resuming_reports_nothing_twice_but_knows_the_newest(path: Path) -> None:
    append(path, *({"step": step, "phase": "train"} for step in range(50)), b"half")
    tail = ProgressTail(str(path), resume=True)
    assert tail.newest == {"step": 49, "phase": "train"}
    assert tail.read() == []
    append(path, b"\n", {"step": 50})
    assert steps(tail.read()) == [50]


def test_resuming_before_there_is_a_file_misses_nothing(path: Path) -> None:
    tail = ProgressTail(str(path), resume=True)
    assert tail.newest == {}
    append(path, {"step": 1})
    assert steps(tail.read()) == [1]


@given(st.lists(st.integers(1, 40), max_size=30))
@settings(deadline=None, max_examples=30)
def test_however_the_writes_are_cut_every_record_arrives_once(cuts: list[int]) -> None:
    data = b"".join(b'{"step": %d}\n' % step for step in range(40))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "progress.jsonl"
        tail = ProgressTail(str(path))
        found: list[Any] = []
        for cut in [*cuts, len(data)]:
            append(path, data[:cut])
            data = data[cut:]
            found += steps(tail.read())
    assert found == list(range(40))


def test_values_become_flat_bounded_scalars() -> None:
    record = {
        "step": 3, "done": False, "note": None, "loss": math.nan, "up": math.inf, "down": -math.inf,
        "big": 2**64, "huge": 10**400, "list": [1], "object": {"a": 1}, "text": "x" * 1000, "k" * 100: 1,
        "half": "\ud800",
    }  # fmt: skip
    assert sanitized(record) == {
        "step": 3, "done": False, "note": None, "loss": "nan", "up": "inf", "down": "-inf", "big": 2.0**64,
        "text": "x" * progress.MAX_STRING, "half": "?",
    }  # fmt: skip
    assert len(sanitized({f"field{number}": number for number in range(1000)})) == progress.MAX_FIELDS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters()), json_values, max_size=40))
def test_whatever_a_record_holds_it_can_be_sent(record: dict[str, Any]) -> None:
    message = wire.Progress("run", 1, 0, (sanitized(record),))
    assert wire.decode(wire.encode(message)) == message


@pytest.mark.parametrize("filler", ["é", "\x7f", "😀", "\\u0007", "1e15,", "NaN,"])
def test_what_one_call_finds_fits_one_line_of_the_wire(path: Path, filler: str) -> None:
    if filler.endswith(","):
        body = ",".join(f'"{chr(97 + n)}":{filler[:-1]}' for n in range(26))
    else:
        body = ",".join(f'"{chr(97 + n)}":"{filler * 190}"' for n in range(10))
    line = ("{" + body + "}\n").encode()
    append(path, *[line] * (4 * progress.TAIL_BYTES // len(line)))
    found = ProgressTail(str(path)).read()
    assert found
    assert len(wire.encode(wire.Progress("run", 1, 0, tuple(found)))) < wire.MAX_LINE


@given(st.integers(0, 400), st.integers(0, 50))
def test_thinned_is_even_and_keeps_both_ends(count: int, limit: int) -> None:
    kept = thin(range(count), limit)
    assert len(kept) <= limit
    if count <= limit:
        assert kept == list(range(count))
    elif limit:
        assert len(kept) >= limit / 2
        assert kept[-1] == count - 1
        assert limit == 1 or kept[0] == 0
        distances = [after - before for before, after in itertools.pairwise(kept[:-1])]
        assert len(set(distances)) <= 1  # all but the last, which leads to the newest


def test_thinning_holds_no_more_than_what_it_returns() -> None:
    class Item:
        alive = 0

        def __init__(self) -> None:
            Item.alive += 1

        def __del__(self) -> None:
            Item.alive -= 1

    most = 0

    def items() -> Iterator[Item]:
        nonlocal most
        for _ in range(5000):
            yield Item()
            most = max(most, Item.alive)

    assert len(thin(items(), 100)) <= 100
    assert most <= 102


@pytest.mark.parametrize("count", [0, 1, 10, 999, 200_000])
def test_history_spans_the_file_and_ends_with_the_newest(path: Path, count: int) -> None:
    path.write_text("".join(f'{{"step": {step}, "loss": {1 / (1 + step):.6f}}}\n' for step in range(count)))
    found = steps(history(str(path), 100))
    assert len(found) == min(count, 100) or 50 <= len(found) <= 100
    assert found == sorted(set(found))
    if count:
        assert (found[0], found[-1]) == (0, count - 1)
        largest_gap = max((after - before for before, after in itertools.pairwise(found)), default=1)
        assert largest_gap <= max(1, 4 * count / 100)


def test_history_of_a_large_file_takes_time_by_the_limit(path: Path) -> None:
    block = b"".join(
        b'{"step": %d, "loss": 0.123456, "tokens_per_second": 411920.5}\n' % step for step in range(1000)
    )
    with path.open("wb") as file:
        for _ in range(1000):
            file.write(block)
    assert path.stat().st_size > 10 * progress.WHOLE_BYTES
    started = time.process_time()
    assert len(history(str(path), 1000)) >= 990
    assert time.process_time() - started < 0.5


def test_history_leaves_out_what_is_no_record_and_what_is_not_finished(path: Path) -> None:
    append(path, {"step": 1}, b"garbage\n", {"step": 2}, b'{"step": 3}')
    assert steps(history(str(path), 100)) == [1, 2]
    assert steps(history(str(path), 1)) == [2]
    assert history(str(path), 0) == []
    assert history(str(path.with_name("missing")), 10) == []


def test_history_with_garbage_at_its_end_still_has_the_newest_record(path: Path) -> None:
    append(path, *({"step": step} for step in range(3000)), *[b"garbage\n"] * 5)
    found = steps(history(str(path), 50))
    assert len(found) <= 50
    assert found[-1] == 2999


def test_history_fits_one_line_of_the_wire(path: Path) -> None:
    append(path, *({"step": step, **{f"text{n}": "é" * 180 for n in range(3)}} for step in range(1000)))
    found = history(str(path), 1000)
    assert len(found) > 20
    assert found[-1]["step"] == 999
    assert len(wire.encode(wire.Reply(1, {"records": found}))) < wire.MAX_LINE
