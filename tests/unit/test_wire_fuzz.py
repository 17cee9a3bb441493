"""The wire format under any input: `decode` raises only WireError, and what is encoded comes back."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import wire

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(max_size=40)
number = st.floats(allow_nan=False, allow_infinity=False)
integer = st.integers(-(2**63), 2**63 - 1)
scalar = st.none() | st.booleans() | integer | number | text
tree = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)

RUN_IDS = st.from_regex(wire.RUN_ID, fullmatch=True).filter(wire.RUN_ID.match)
HOST_NAMES = st.from_regex(wire.HOST_NAME, fullmatch=True).filter(wire.HOST_NAME.match)
TRAININGS = st.builds(
    wire.Training,
    strategy=st.just("") | st.from_regex(wire.WORD, fullmatch=True).filter(wire.WORD.match),
    ranks=st.integers(0, wire.LARGEST_COUNT),
)
STREAMS = st.sampled_from(["launcher", "rank0", "rank7", "rank12345"])


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of the type that a field of a message is declared with."""
    if hint in (str, int, bool, float, Any):
        return {str: text, int: integer, bool: st.booleans(), float: number, Any: tree}[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return st.one_of(*(st.none() if option is type(None) else values(option) for option in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(text, values(arguments[1]), max_size=3)
    return messages(hint)


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Valid messages of one kind."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    if "run" in fields:
        fields["run"] = RUN_IDS
    if "stream" in fields:
        fields["stream"] = STREAMS
    if kind is wire.Node:
        fields["name"] = HOST_NAMES
    if kind is wire.Ranks:
        fields["training"] = st.none() | TRAININGS
    if kind is wire.Run:
        fields["nodes"] = st.lists(values(wire.Node), min_size=2, max_size=3).map(tuple)
        fields["node_rank"] = st.integers(0, 1)
        fields["nproc_per_node"] = st.integers(0, wire.MAX_ITEMS)
        fields["world_size"] = st.integers(0, wire.MAX_ITEMS * wire.MAX_NODES)
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", wire.KINDS.values(), ids=lambda kind: kind.__name__)
def test_round_trip_of_every_kind(kind: type[Any]) -> None:
    @QUICK
    @given(messages(kind))
    def check(message: Any) -> None:
        line = wire.encode(message)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert normal(wire.decode(line)) == normal(message)

    check()


def normal(value: Any) -> Any:
    """Plain data: tuples become lists, and 1.0 equals 1."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


@QUICK
@given(st.binary(max_size=300))
def test_any_bytes(line: bytes) -> None:
    decode(line)


@QUICK
@given(tree)
def test_any_json(value: Any) -> None:
    decode(json.dumps(value).encode())


@settings(QUICK, max_examples=300)
@given(st.data())
def test_a_valid_message_with_one_field_spoilt(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(wire.KINDS)))
    fields = json.loads(wire.encode(data.draw(messages(wire.KINDS[kind]))))
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(
        tree | st.sampled_from([1e308 * 10, math.nan, 10**400, -(10**400), [[]] * 20000, {}])
    )
    message = decode(json.dumps(fields).encode())
    if message is not None:
        wire.encode(message)  # what was accepted can be said again: no infinity or NaN slipped in


@QUICK
@given(st.data())
def test_a_line_cut_or_changed_anywhere(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(wire.KINDS)))
    line = bytearray(wire.encode(data.draw(messages(wire.KINDS[kind]))))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decode(bytes(line))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"kind":' * 20_000,
        b'{"kind":"request","id":1,"method":"x","params":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"kind":"request","id":' + b"9" * 200_000 + b',"method":"x","params":{}}',
        b'{"kind":"request","id":1,"method":"x","params":{"a":1e999}}',
        b'{"kind":"request","id":1,"method":"x","params":{"a":NaN}}',
        b"\xff\xfe{\x00}\x00",
        b"\xed\xa0\x80",
        b'{"kind":"\\ud800"}',
        b'{"kind":"request","id":true,"method":"x","params":{}}',
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_lines_made_to_break_it(line: bytes) -> None:
    message = decode(line)
    if message is not None:
        wire.encode(message)


def test_numbers_that_are_not_finite_are_not_sent() -> None:
    with pytest.raises(wire.WireError):
        wire.encode(wire.Reply(1, {"loss": math.nan}))


def decode(line: bytes) -> wire.Message | None:
    """The message, None when it was refused in the one way that is allowed; all else fails the test."""
    try:
        return wire.decode(line)
    except wire.WireError:
        return None
