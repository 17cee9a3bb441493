"""The wire: what agent and viewer say to each other, and the only form in which they say it.

One JSON object a line, UTF-8, each line under `MAX_LINE` bytes. The field `kind` names the message; the
other fields are those of the dataclass of that kind. A decoder skips kinds it does not know and fields it
does not know, so either side may be newer; a different *major* protocol version is refused in `Hello`.

Both sides distrust what arrives. `decode` checks every type, bounds every size, refuses NaN and infinity,
and raises `WireError`; whoever reads counts such a line and goes on.

Annotations are written as `typed.py` can read them at run time.
"""

from ..typed import MAX_ITEMS as MAX_ITEMS
from ..typed import MAX_LINE as MAX_LINE
from ..typed import MAX_TEXT as MAX_TEXT
from ..typed import WireError as WireError
from ..typed import from_json as from_json
from ..typed import to_json as to_json
from .codec import decode as decode
from .codec import encode as encode
from .codec import encode_log as encode_log
from .codec import log_message as log_message
from .codec import payload as payload
from .limits import END_STATES as END_STATES
from .limits import GPU_STATES as GPU_STATES
from .limits import HOST_NAME as HOST_NAME
from .limits import KNOWN_RUNS as KNOWN_RUNS
from .limits import LARGEST_COUNT as LARGEST_COUNT
from .limits import LIVE_STATES as LIVE_STATES
from .limits import MAX_CHUNK as MAX_CHUNK
from .limits import MAX_NODES as MAX_NODES
from .limits import PROTOCOL as PROTOCOL
from .limits import RANK_STATES as RANK_STATES
from .limits import RUN_ID as RUN_ID
from .limits import RUN_STATES as RUN_STATES
from .limits import STREAM as STREAM
from .limits import WORD as WORD
from .limits import Record as Record
from .limits import Scalar as Scalar
from .messages import KINDS as KINDS
from .messages import Event as Event
from .messages import Failure as Failure
from .messages import Gap as Gap
from .messages import Hello as Hello
from .messages import Log as Log
from .messages import Message as Message
from .messages import Progress as Progress
from .messages import Ready as Ready
from .messages import Reply as Reply
from .messages import Request as Request
from .runs import Ranks as Ranks
from .runs import RankSample as RankSample
from .runs import Removed as Removed
from .runs import Run as Run
from .runs import Training as Training
from .runs import training as training
from .spec import CodeRef as CodeRef
from .spec import EnvSetup as EnvSetup
from .spec import LaunchSpec as LaunchSpec
from .spec import Node as Node
from .spec import Placement as Placement
from .spec import Tree as Tree
from .telemetry import AgentCost as AgentCost
from .telemetry import CpuSample as CpuSample
from .telemetry import GpuSample as GpuSample
from .telemetry import GpuStatus as GpuStatus
from .telemetry import MemorySample as MemorySample
from .telemetry import NetworkSample as NetworkSample
from .telemetry import PidsSample as PidsSample
from .telemetry import Sample as Sample
from .telemetry import SpaceSample as SpaceSample
from .telemetry import Xid as Xid
