"""Where in the world a Python stack stands: waiting for other ranks, for data, for a lock, for a disk."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from .evidence import Frame, Rank

OTHERS = re.compile(
    r"/(site|dist)-packages/|/lib/python\d[\d.]*/|\A<|/attempts/\d+/rank\.py\Z"
    r"|/code/[0-9a-f]{64}/trainer/(?!tasks/)"
)
"""Files that are not the user's own code: packages, Python's, and ours."""

COLLECTIVE = re.compile(
    r"/torch/distributed/(distributed_c10d|_functional_collectives|nn/functional|rendezvous)\.py\Z"
    r"|/horovod/torch/mpi_ops\.py\Z|/deepspeed/comm/"
)
BACKWARD = re.compile(r"/torch/autograd/graph\.py\Z")
LOADER = re.compile(r"/torch/utils/data/(dataloader\.py|_utils/(fetch|pin_memory|worker)\.py)\Z")
CHILDREN = re.compile(r"/torch/multiprocessing/spawn\.py\Z|/multiprocessing/process\.py\Z")
LOCK = re.compile(r"/(threading|queue|_weakrefset)\.py\Z|/concurrent/futures/")
STORAGE = re.compile(
    r"/torch/serialization\.py\Z|/torch/distributed/checkpoint/|/safetensors/|/shutil\.py\Z|/pickle\.py\Z"
    r"|/zipfile(\.py|/)|/numpy/lib/(npyio|_npyio_impl)\.py\Z"
)
WAITING_FUNCTIONS = ("wait", "acquire", "join", "_wait_for_tstate_lock", "get", "put", "result", "__enter__")
LOCK_LINE = re.compile(
    r"\bwith\s+[\w.\[\]]*(lock|mutex|cond|sem)[\w.\[\]]*|\.(acquire|join|wait|get|put|result)\(", re.I
)
SLEEP_LINE = re.compile(r"\bsleep\(")
STORAGE_LINE = re.compile(r"\b(save|load|fsync|write|read|open|dump|copy\w*|flush)\w*\(|\.write\b", re.I)
STORAGE_CHANNEL = re.compile(
    r"nfs|rpc_|io_schedule|folio|page_bit|wb_|dirty|fuse|jbd2|blk|sync|ext4|xfs|ceph"
)
SLEEP_CHANNEL = re.compile(r"nanosleep|hrtimer")

IDLE_SHARE = 0.05
"""Of a core: a main thread that uses less does nothing."""

PHASES = (
    (re.compile(r"eval|valid|(\A|_)test\Z|test_(step|loop)|predict|infer|generate", re.I), "evaluation"),
    (re.compile(r"save|checkpoint|snapshot|export", re.I), "saving"),
    (re.compile(r"compile|_dynamo|inductor|warm", re.I), "compilation"),
    (re.compile(r"token|preproc|prepare|build_data|download|load_data", re.I), "preparing data"),
)
"""Names of functions from which the kind of a long phase can be told."""

TRAINING = re.compile(r"\Atrain(?!.*token)|train_?and|and_?train", re.I)
"""Names of those that train, whatever else they do: `train_and_evaluate` is no evaluation."""

SAID = {"eval": "evaluation", "save": "saving", "compile": "compilation", "init": "the start"}
"""Phases that a program reports, in words."""


def main_stack(rank: Rank) -> Tuple[Frame, ...]:
    """The main thread's frames, innermost first; empty when they are not known."""
    return next((thread.frames for thread in rank.threads if thread.main), ())


def user_frame(frames: Sequence[Frame]) -> Optional[Frame]:
    """The innermost frame of the user's own code."""
    return next((frame for frame in frames if frame.user_code), None)


def spot(frame: Optional[Frame]) -> str:
    """`function (file.py:12)` for people, or nothing."""
    if frame is None:
        return ""
    name = frame.file.rsplit("/", 1)[-1]
    where = f"{name}:{frame.line}"
    return where if frame.function == "<module>" else f"{frame.function} ({where})"


def in_collective(frames: Sequence[Frame]) -> bool:
    """Whether it waits in a call to other ranks, as far as the stack tells."""
    return any(COLLECTIVE.search(frame.file) for frame in before_user(frames))


def call_of(frames: Sequence[Frame]) -> str:
    """The function in which the program waits for other ranks, such as `recv`; empty where it does not."""
    calls = [frame.function for frame in before_user(frames) if COLLECTIVE.search(frame.file)]
    return calls[-1] if calls else ""


def in_backward(frames: Sequence[Frame]) -> bool:
    """Whether it is in a backward pass, in which wrappers of torch's wait for other ranks."""
    return any(BACKWARD.search(frame.file) for frame in before_user(frames))


def in_backward_or_collective(rank: Rank) -> bool:
    """Whether its main thread is where ranks wait for each other, as far as the stack tells."""
    stack = main_stack(rank)
    return in_collective(stack) or in_backward(stack)


def in_loader(frames: Sequence[Frame]) -> bool:
    """Whether it waits for, or makes, a batch of a DataLoader."""
    return any(LOADER.search(frame.file) for frame in frames[:40])


def in_worker(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The own frames of a worker of a DataLoader: below them are those of the rank that forked it."""
    ends = [number for number, frame in enumerate(frames) if frame.function == "_worker_loop"]
    return frames[: ends[0]] if ends else frames


def for_children(frames: Sequence[Frame]) -> bool:
    """Whether it waits for processes that it has started itself, as by `torch.multiprocessing.spawn`."""
    return any(CHILDREN.search(frame.file) for frame in before_user(frames))


def in_lock(rank: Rank, frames: Sequence[Frame]) -> bool:
    """Whether it waits for another thread: for a lock, an event, a queue."""
    if not frames or in_loader(frames) or in_collective(frames):
        return False
    top = frames[0]
    if LOCK.search(top.file) and top.function in WAITING_FUNCTIONS:
        return True
    return bool(LOCK_LINE.search(top.source)) and "futex" in rank.wait_channel + "futex" * (
        not rank.wait_channel
    )


def in_storage(rank: Rank, frames: Sequence[Frame]) -> bool:
    """Whether it reads or writes files."""
    if any(STORAGE.search(frame.file) for frame in before_user(frames)):
        return True
    top = frames[0] if frames else None
    asleep = SLEEP_LINE.search(top.source) if top else None
    return bool(
        top and not asleep and STORAGE_CHANNEL.search(rank.wait_channel) and STORAGE_LINE.search(top.source)
    )


def before_user(frames: Sequence[Frame]) -> Tuple[Frame, ...]:
    """The frames inside the innermost one of the user's own code."""
    inner = []
    for frame in frames:
        if frame.user_code:
            break
        inner.append(frame)
    return tuple(inner)


def phase(rank: Rank) -> str:
    """What long phase it is in, in words: as its program says, else by the names of its functions."""
    if rank.phase in SAID:
        return SAID[rank.phase]
    for frame in main_stack(rank):
        if frame.user_code or "_dynamo" in frame.file or "_inductor" in frame.file:
            if frame.user_code and TRAINING.search(frame.function):
                continue
            text = frame.function if frame.user_code else frame.file
            for pattern, word in PHASES:
                if pattern.search(text):
                    return word
    return ""
