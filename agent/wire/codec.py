"""From a message to its line and back. What arrives is distrusted: types, sizes and names are checked."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import typing
from typing import Optional

from ..typed import MAX_ITEMS, MAX_LINE, WireError, from_json, refuse_constant
from .limits import HOST_NAME, MAX_NODES, RUN_ID, STREAM
from .messages import KINDS, Event, Gap, Log, Message, Progress
from .runs import Ranks, Run, Training, training


def encode(message: Message) -> bytes:
    """Return `message` as one line. Raises WireError when it is over `MAX_LINE` or holds NaN or infinity."""
    fields = dataclasses.asdict(message)
    fields["kind"] = kind = type(message).__name__.lower()
    try:
        text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise WireError(f"{kind} holds a number that is not finite") from error
    line = text.encode("ascii") + b"\n"
    if len(line) > MAX_LINE:
        raise WireError(f"{kind} of {len(line)} bytes is over the limit of {MAX_LINE}")
    return line


def log_message(run: str, attempt: int, stream: str, offset: int, data: bytes) -> Log:
    """A `Log` of at most `MAX_CHUNK` raw bytes."""
    return Log(run, attempt, stream, offset, base64.b64encode(data).decode("ascii"))


def encode_log(run: str, attempt: int, stream: str, offset: int, data: bytes) -> bytes:
    """`encode(log_message(...))` in a third of the time: base64 needs no escaping, and logs are the bulk."""
    head = {"kind": "log", "run": run, "attempt": attempt, "stream": stream, "offset": offset}
    text = json.dumps(head, separators=(",", ":"))
    return text[:-1].encode("ascii") + b',"data":"' + base64.b64encode(data) + b'"}\n'


def payload(data: str) -> bytes:
    """The raw bytes of a base64 field. Raises WireError."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError("data is not base64") from error


def decode(line: bytes) -> Optional[Message]:
    """Return the message in `line`, or None when its kind is not known here.

    Raises WireError when the line is too long, is not JSON, or has a field of the wrong type or size.
    """
    if len(line) > MAX_LINE:
        raise WireError(f"line of {len(line)} bytes is over the limit of {MAX_LINE}")
    try:
        fields = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise WireError("not an object")
    kind = fields.get("kind")
    if not isinstance(kind, str):
        raise WireError("no kind")
    cls = KINDS.get(kind)
    if cls is None:
        return None
    message = from_json(cls, fields)
    if isinstance(message, (Log, Gap)) and not STREAM.match(message.stream):
        raise WireError(f"{kind}.stream is not the name of a stream")
    if isinstance(message, (Log, Gap, Run, Ranks, Progress, Event)) and not RUN_ID.match(message.run):
        raise WireError(f"{kind}.run is not the name of a run")
    if isinstance(message, Run):
        _check_run(message)
    if isinstance(message, Ranks):
        told = message.training
        if told is not None and told != (training(vars(told)) or Training()):
            raise WireError("ranks.training is not of short words and counts alone")
    return typing.cast(Message, message)


def _check_run(run: Run) -> None:
    """Refuse what a viewer could not draw: it counts the ranks and the hosts of a run."""
    if len(run.nodes) > MAX_NODES:
        raise WireError(f"run.nodes has {len(run.nodes)} entries, over {MAX_NODES}")
    if not 0 <= run.node_rank < max(1, len(run.nodes)):
        raise WireError("run.node_rank is not that of one of its nodes")
    if not all(HOST_NAME.match(node.name) for node in run.nodes):
        raise WireError("run.nodes.name is not the name of a host")
    if not 0 <= run.nproc_per_node <= MAX_ITEMS or not 0 <= run.world_size <= MAX_NODES * MAX_ITEMS:
        raise WireError(f"run has {run.nproc_per_node} ranks a node and {run.world_size} in all")
