"""The wire: what agent and viewer say to each other, and the only form in which they say it.

One JSON object a line, UTF-8, each line under `MAX_LINE` bytes. The field `kind` names the message; the
other fields are those of the dataclass of that kind. A decoder skips kinds it does not know and fields it
does not know, so either side may be newer; a different *major* protocol version is refused in `Hello`.

Both sides distrust what arrives. `decode` checks every type, bounds every size, refuses NaN and infinity,
and raises `WireError`; whoever reads counts such a line and goes on.

Annotations are written as `typed.py` can read them at run time.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
import typing
from typing import Any, Dict, Optional, Tuple, Type, Union

from .typed import MAX_ITEMS as MAX_ITEMS
from .typed import MAX_LINE as MAX_LINE
from .typed import MAX_TEXT as MAX_TEXT
from .typed import WireError as WireError
from .typed import from_json as from_json
from .typed import refuse_constant
from .typed import to_json as to_json

PROTOCOL = (1, 1)
"""Major and minor version of this format. A different major does not interoperate."""

MAX_CHUNK = 96 * 1024
"""Raw bytes in one `Log` message or one reply that carries data: in base64 it stays well under `MAX_LINE`."""

MAX_NODES = 1024
"""Hosts of one run."""

KNOWN_RUNS = 200
"""The newest runs that a viewer is told about on connecting."""

RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}\Z")
"""Names of runs: safe as a folder's name, as a shell word and on the screen."""

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""What users call hosts: also part of commands that a message offers for pasting into a shell."""

STREAM = re.compile(r"launcher\Z|rank(0|[1-9][0-9]{0,4})\Z")
"""Names of an attempt's log streams: `launcher` is what torchrun itself says, `rank3` is rank 3's output."""

LIVE_STATES = ("starting", "running", "stalled", "stopping")
END_STATES = ("finished", "failed", "stopped")
RUN_STATES = (*LIVE_STATES, *END_STATES, "unreachable")
"""States of a run. `unreachable` is the viewer's: its host cannot be asked at the moment."""

RANK_STATES = ("starting", "running", "exited", "lost")
"""`exited`: its end was recorded, see `exit_code`. `lost`: gone without a word (power cut, SIGKILL)."""

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,31}\Z")
"""The name of a strategy or a kind of number."""

LARGEST_COUNT = 2**53

GPU_STATES = (
    "ok", "none", "starting", "not-loaded", "no-permission", "blocked", "mismatch", "lost", "reset-required",
    "hung", "error",
)  # fmt: skip
"""State of the NVIDIA driver, or of one GPU. `none` is a machine without NVIDIA GPUs: not a fault."""

Scalar = Union[None, bool, int, float, str]
Record = Dict[str, Scalar]
"""A line of a rank's progress: `step`, `loss`, `tokens_per_second`, ... NaN and infinity come as strings."""


# --- viewer -> agent ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Request:
    """Asks for one thing; answered by one `Reply` or `Failure` with the same `id`."""

    id: int
    method: str
    params: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class CodeRef:
    """A content-addressed archive already stored on the host and put on the ranks' `PYTHONPATH`."""

    sha256: str
    name: str


@dataclasses.dataclass(frozen=True)
class Tree:
    """A project's files, already on the host. `sha256` is that of the list of their names and hashes."""

    sha256: str
    name: str
    files: int
    bytes: int
    revision: str = ""
    """What version control calls it, such as `3f2c1a9` or `3f2c1a9 with changes`; empty without any."""


@dataclasses.dataclass(frozen=True)
class EnvSetup:
    """What a virtual environment gets besides what the interpreter that it is made from has."""

    packages: Tuple[str, ...] = ()
    pip_args: Tuple[str, ...] = ()
    recipe: str = ""
    """Built by our recipe of that name, for what pip alone does not bring; empty without one."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One host of a run on several."""

    name: str
    """The launching user's word for it."""
    host_id: str
    """See `Hello`: another user may call it otherwise."""
    address: str
    """By which the other hosts reach it."""
    interface: str
    """The network interface that has the address."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """The hosts of one attempt in the order of their node ranks, and which of them the recipient is."""

    nodes: Tuple[Node, ...]
    node_rank: int
    rendezvous_address: str
    rendezvous_port: int
    rendezvous_id: str


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """Everything a host needs to know to start one attempt of a run.

    `nproc_per_node` 0 means "auto": one rank a GPU, or on a host without GPUs one a core, at least 2.
    `python` "auto" means the first interpreter on the host that imports torch.
    `target_kind` is `script` (a path on the host), `module` (as in `python -m`), or `task` (a task of the
    built-in trainer: the target is its module, and `code` carries it).
    `cwd` empty means the user's home directory on the host, or with a `project` the run's copy of it, to
    which a relative one is relative.
    `secret_sources` says where the launching user's machine finds each secret; the values are not in here.
    """

    run: str
    name: str
    profile: str
    strategy: str
    target_kind: str
    target: str
    args: Tuple[str, ...] = ()
    cwd: str = ""
    nproc_per_node: int = 0
    python: str = "auto"
    env: Dict[str, str] = dataclasses.field(default_factory=dict)
    code: Tuple[CodeRef, ...] = ()
    stop_grace_seconds: float = 30.0
    project: Optional[Tree] = None
    env_setup: Optional[EnvSetup] = None
    secret_sources: Dict[str, str] = dataclasses.field(default_factory=dict)
    stall_seconds: float = 0.0
    """How long a rank may go without progress; 0: what the run's own rhythm allows."""


# --- agent -> viewer ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hello:
    """First message on every connection: who answers."""

    protocol_major: int
    protocol_minor: int
    version: str
    build: str
    """SHA-256 of the agent.pyz that is running, in hex."""
    host_id: str
    """Random identity of `ENCAMP_HOME` on this host; survives reboots, not a wiped disk."""
    boot_id: str
    hostname: str
    user: str
    home: str
    """Absolute path of `ENCAMP_HOME` on the host."""
    python: str
    pid: int
    time: float
    """Wall clock of the host, seconds since the epoch."""
    started: float


@dataclasses.dataclass(frozen=True)
class Ready:
    """Every run known at the time of connecting has been sent; from now on there are only changes."""


@dataclasses.dataclass(frozen=True)
class CpuSample:
    """`percent` is of `limit_cores` (100 = all that this host may use); None until two readings exist."""

    logical_cores: int
    limit_cores: float
    percent: Optional[float]
    load1: float
    load5: float
    load15: float
    throttled_percent: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class MemorySample:
    """`limit_bytes` is the smaller of the machine's memory and the cgroup's limit."""

    used_bytes: int
    limit_bytes: int
    from_cgroup: bool


@dataclasses.dataclass(frozen=True)
class SpaceSample:
    """A file system: `/dev/shm`, or the one that holds `ENCAMP_HOME`."""

    path: str
    used_bytes: int
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class PidsSample:
    """Processes and threads, against the cgroup's limit on them."""

    used: int
    limit: int


@dataclasses.dataclass(frozen=True)
class NetworkSample:
    """All interfaces but loopback, bytes per second; None until two readings exist."""

    receive_bytes_per_second: Optional[float]
    transmit_bytes_per_second: Optional[float]


@dataclasses.dataclass(frozen=True)
class Xid:
    """An error of a GPU that its driver reported, see diagnosis/xid.py; `time` is the host's wall clock."""

    time: float
    code: int


@dataclasses.dataclass(frozen=True)
class GpuSample:
    """One GPU. None where the driver does not say; `reserved` is the driver's own share, not in `used`."""

    index: int
    uuid: str
    name: str
    state: str
    utilization_percent: Optional[float] = None
    memory_used_bytes: Optional[int] = None
    memory_reserved_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    power_watts: Optional[float] = None
    power_limit_watts: Optional[float] = None
    temperature_celsius: Optional[float] = None
    xids: Tuple[Xid, ...] = ()
    """The newest that were reported, oldest first."""


@dataclasses.dataclass(frozen=True)
class GpuStatus:
    """The driver as a whole. `time` is when these values were read: an old one is stale, never live."""

    state: str
    message: str
    time: float
    driver: str = ""
    gpus: Tuple[GpuSample, ...] = ()


@dataclasses.dataclass(frozen=True)
class AgentCost:
    """What encamp itself takes on the host: daemon and supervisors together; `cpu_percent` is of one core."""

    cpu_percent: Optional[float]
    rss_bytes: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """Telemetry of one host, once a second. `time` is the host's wall clock."""

    time: float
    monotonic: float
    cpu: CpuSample
    memory: MemorySample
    shm: Optional[SpaceSample]
    disk: Optional[SpaceSample]
    network: NetworkSample
    gpu: GpuStatus
    agent: AgentCost
    pids: Optional[PidsSample] = None


@dataclasses.dataclass(frozen=True)
class RankSample:
    """One rank's process as seen from outside, and its progress as counted by the shim."""

    rank: int
    local_rank: int
    state: str
    pid: Optional[int] = None
    process_state: Optional[str] = None
    """The letter of /proc/PID/stat: R running, S sleeping, D in the kernel, T stopped, Z dead."""
    gpu: Optional[int] = None
    """Index into the host's GPUs, where the rank uses one."""
    step: Optional[int] = None
    """Optimizer steps so far in this attempt, or the trainer's own step where it reports one."""
    step_time: Optional[float] = None
    """Host's wall clock at the last step."""
    step_seconds: Optional[float] = None
    """Seconds per step, smoothed."""
    cpu_percent: Optional[float] = None
    rss_bytes: Optional[int] = None
    log_bytes: int = 0
    exit_code: Optional[int] = None
    phase: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Training:
    """How the work is shared, as the trainer said when it began. Empty and 0 are what it did not say.

    `mesh_data` x `mesh_tensor` x `mesh_pipeline` ranks take part; those of `mesh_data` have samples of their
    own, and hold `mesh_replicas` whole copies of the model where they hold them in shards.
    """

    strategy: str = ""
    precision: str = ""
    ranks: int = 0
    mesh_data: int = 0
    mesh_tensor: int = 0
    mesh_pipeline: int = 0
    mesh_replicas: int = 0
    global_batch: int = 0
    micro_batch: int = 0
    accumulation: int = 0
    steps: int = 0
    parameters: int = 0


@dataclasses.dataclass(frozen=True)
class Ranks:
    """All ranks of a run's current attempt on this host, once a second while it lives and once at its end."""

    run: str
    attempt: int
    time: float
    ranks: Tuple[RankSample, ...]
    training: Optional[Training] = None
    """None for a program that says nothing of itself."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as this host knows it; sent on connecting and on every change.

    `nproc_per_node` ranks of its `world_size` are here, the first of them `node_rank * nproc_per_node`.
    """

    run: str
    name: str
    profile: str
    strategy: str
    attempt: int
    state: str
    reason: str
    """One sentence: why it failed, who stopped it; empty while there is nothing to say."""
    created: float
    started: float
    """Start of the current attempt, host's wall clock."""
    ended: Optional[float]
    world_size: int
    nproc_per_node: int
    python: str
    command: Tuple[str, ...]
    cwd: str
    exit_code: Optional[int] = None
    nodes: Tuple[Node, ...] = ()
    """All hosts of the current attempt in the order of their node ranks; empty for a run on one host."""
    node_rank: int = 0
    code: str = ""
    """The project's files that it runs: name, beginning of the hash, revision."""


@dataclasses.dataclass(frozen=True)
class Removed:
    """A run's folder was removed: this host knows nothing of it any more."""

    run: str


@dataclasses.dataclass(frozen=True)
class Log:
    """`data` is base64 of the bytes of the stream's file from `offset` on: see `payload`, `log_message`."""

    run: str
    attempt: int
    stream: str
    offset: int
    data: str


@dataclasses.dataclass(frozen=True)
class Gap:
    """Bytes [start, end) of a followed stream were not sent, as the viewer was slow: fetch when needed."""

    run: str
    attempt: int
    stream: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """New lines of a rank's progress file, oldest first."""

    run: str
    attempt: int
    rank: int
    records: Tuple[Dict[str, Scalar], ...]


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that was done or happened: `actor` is a person's or a part's name."""

    run: str
    attempt: int
    time: float
    name: str
    actor: str
    text: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to the request `id`."""

    id: int
    result: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Failure:
    """The refusal of the request `id`: `code` for programs, `message` and `hint` for people."""

    id: int
    code: str
    message: str
    hint: str = ""


Message = Union[
    Hello, Ready, Sample, Ranks, Run, Removed, Log, Gap, Progress, Event, Reply, Failure, Request
]  # fmt: skip

_CLASSES: Tuple[Type[Any], ...] = (
    Hello, Ready, Sample, Ranks, Run, Removed, Log, Gap, Progress, Event, Reply, Failure, Request,
)  # fmt: skip

KINDS: Dict[str, Type[Any]] = {kind.__name__.lower(): kind for kind in _CLASSES}

# --- encoding ----------------------------------------------------------------------------------------------


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


# --- decoding ----------------------------------------------------------------------------------------------


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


def training(record: Optional[Dict[str, Any]]) -> Optional[Training]:
    """What is believed of a record in which a program says how it trains; None when that is nothing."""
    kept: Dict[str, Any] = {}
    for name, nothing in vars(Training()).items():
        value = (record or {}).get(name)
        if type(value) is not type(nothing) or not value:
            continue
        if WORD.match(value) if isinstance(value, str) else 0 < value <= LARGEST_COUNT:
            kept[name] = value
    return Training(**kept) if kept else None


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
