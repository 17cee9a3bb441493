"""The wire format under the host's Pythons: what one version says, every other reads and says alike."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import typing
from typing import Any

import pytest

from agent import instance, wire

ECHO = """
import sys
sys.path.insert(0, sys.argv[1])
from agent import wire
for line in sys.stdin.buffer:
    try:
        message = wire.decode(line)
        sys.stdout.buffer.write(b"unknown\\n" if message is None else wire.encode(message))
    except wire.WireError as error:
        sys.stdout.buffer.write(("refused: %s\\n" % error).encode("ascii", "replace"))
"""


def test_every_kind_is_read_and_said_alike(python: str) -> None:
    lines = [wire.encode(example(kind)) for kind in wire.KINDS.values()]
    assert echo(python, lines) == lines


def test_what_is_refused_is_refused_alike(python: str) -> None:
    lines = [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"kind":"later"}',
        b'{"kind":"ready","more":1}',
        b'{"kind":"request","id":1,"method":"x","params":{"a":NaN}}',
        b'{"kind":"request","id":1,"method":"x","params":{"a":1e999}}',
        b'{"kind":"request","id":1.0,"method":"x","params":{}}',
        b'{"kind":"gap","run":"../x","attempt":1,"stream":"rank0","start":0,"end":1}',
        b'{"kind":"gap","run":"x","attempt":1,"stream":"rank00","start":0,"end":1}',
        b'{"kind":"request","id":1,"method":"x","params":{"a":' + b"[" * 40 + b"]" * 40 + b"}}",
        b"[" * 100_000,
        b"x" * (wire.MAX_LINE + 1),
    ]
    answers = echo(python, [line + b"\n" for line in lines])
    words = [answer.split()[0] for answer in answers]
    assert words.count(b"refused:") == len(lines) - 2
    assert answers[4] == b"unknown\n"
    assert answers[5] == b'{"kind":"ready"}\n'


@pytest.mark.parametrize("node_rank", [-1, 2])
def test_a_host_is_one_of_the_nodes_of_its_runs(node_rank: int) -> None:
    run = dataclasses.replace(example(wire.Run), node_rank=node_rank)
    with pytest.raises(wire.WireError, match="node_rank"):
        wire.decode(wire.encode(run))


@pytest.mark.parametrize(
    "absurd",
    [{"nproc_per_node": -1}, {"nproc_per_node": 10**7}, {"world_size": -1}, {"world_size": 2**62}],
    ids=str,
)
def test_ranks_and_hosts_of_a_run_can_be_drawn(absurd: dict[str, int]) -> None:
    run = example(wire.Run)
    with pytest.raises(wire.WireError, match="ranks a node"):
        wire.decode(wire.encode(dataclasses.replace(run, **absurd)))
    nodes = (dataclasses.replace(run.nodes[0], address="", interface="", host_id=""),) * (wire.MAX_NODES + 1)
    with pytest.raises(wire.WireError, match="entries"):
        wire.decode(wire.encode(dataclasses.replace(run, nodes=nodes)))


@pytest.mark.parametrize(
    "lie", [{"strategy": "a b"}, {"precision": "x" * 33}, {"ranks": -1}, {"steps": 2**60}]
)
def test_how_a_run_trains_is_short_words_and_counts(lie: dict[str, Any]) -> None:
    ranks = wire.Ranks("r", 1, 1.0, (), wire.Training(**lie))
    with pytest.raises(wire.WireError, match=r"ranks\.training"):
        wire.decode(wire.encode(ranks))


@pytest.mark.parametrize("name", ["", "a b", "a;reboot", "a\n", "-a", "a" * 64, "\u202ea"])
def test_names_of_hosts_can_be_pasted_into_a_shell(name: str) -> None:
    run = example(wire.Run)
    run = dataclasses.replace(run, nodes=(*run.nodes[:-1], dataclasses.replace(run.nodes[-1], name=name)))
    with pytest.raises(wire.WireError, match="not the name of a host"):
        wire.decode(wire.encode(run))


def test_a_log_survives_byte_by_byte() -> None:
    data = bytes(range(256)) * (wire.MAX_CHUNK // 256)
    line = wire.encode_log("run", 1, "rank0", 7, data)
    assert len(line) < wire.MAX_LINE
    message = wire.decode(line)
    assert message == wire.log_message("run", 1, "rank0", 7, data)
    assert isinstance(message, wire.Log)
    assert wire.payload(message.data) == data


@pytest.mark.parametrize("data", ["a", "ab=c", "====", "äöü", "YQ==\n", "YQ"])
def test_what_is_not_base64(data: str) -> None:
    with pytest.raises(wire.WireError):
        wire.payload(data)


def test_a_message_over_the_limit_is_not_encoded() -> None:
    with pytest.raises(wire.WireError, match="over the limit"):
        wire.encode(wire.Reply(1, {"text": "x" * wire.MAX_LINE}))


def echo(python: str, lines: list[bytes]) -> list[bytes]:
    done = subprocess.run(
        [python, "-I", "-S", "-c", ECHO, instance.code_root()],
        input=b"".join(lines),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    return done.stdout.splitlines(keepends=True)


def example(kind: type[Any]) -> Any:
    """A message of that kind with a telling value in every field."""
    hints = typing.get_type_hints(kind)
    values = {field.name: _value(hints[field.name], field.name) for field in dataclasses.fields(kind)}
    if kind is wire.Node:
        values["name"] = "vast-a"
    if kind is wire.Training:
        values = {name: "fsdp+tp" if isinstance(value, str) else 2**53 for name, value in values.items()}
    return kind(**values)


def _value(hint: Any, name: str) -> Any:
    special = {
        "run": "a-run",
        "stream": "rank3",
        "node_rank": 1,
        "nproc_per_node": 8,
        "world_size": 16,
        "records": ({"step": 1, "loss": 0.5, "phase": "train", "eta": None},),
    }
    if name in special:
        return special[name]
    plain = {
        str: 'grüße \u2028 \U0001f600 \\ " \x1b',
        int: 2**63 - 1,
        float: 0.1 + 0.2,
        bool: True,
        Any: {"a": [1]},
    }
    if hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return _value(arguments[0], name)
    if origin is tuple:
        return (_value(arguments[0], name),) * 2
    if origin is dict:
        return {"key": _value(arguments[1], name)}
    return example(hint)


def test_the_examples_are_plain_json() -> None:
    for kind in wire.KINDS.values():
        fields = json.loads(wire.encode(example(kind)))
        assert fields.pop("kind") == kind.__name__.lower()
        assert set(fields) == {field.name for field in dataclasses.fields(kind)}
