"""A worker or a parameter server: runs TensorFlow's server until the chief has gone, and reports meanwhile.

What it computes is the chief's; the chief lets it print lines, see `cluster`, from which its own progress is
told. It leaves when the chief no longer listens. On SIGTERM it stays as long as the chief does: the chief
needs it for what it saves.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from contextlib import closing

import tensorflow as tf

from ..config import Config
from ..errors import ClusterError
from ..progress import Progress
from ..stop import StopRequest
from .cluster import MARK, Cluster
from .devices import gpus, own_gpu, peak_memory

LOOK_SECONDS = 0.5
FIRST_SECONDS = 600.0
"""How long the chief may take to come."""
SILENT_SECONDS = 60.0
"""How long its host may not answer before it counts as gone."""


class Voice:
    """Turns the lines with a mark into this process' progress."""

    def __init__(self, cfg: Config, progress: Progress) -> None:
        self.cfg = cfg
        self.progress = progress
        self.ended = threading.Event()
        self._reported = -1
        self._newest = 0
        self._began = time.perf_counter()
        self._steps = 0
        self._tokens = 0.0

    def hear(self, words: list[str]) -> None:
        """Take a line without its mark. Raises ValueError when it is none of the chief's."""
        kind, *values = words
        if kind == "end":
            self.ended.set()
        elif kind == "phase":
            phase, step = values
            # The chief hears of a step later than who has made it.
            self._newest = max(self._newest, int(step))
            self.progress.record(phase, self._newest, memory_bytes=peak_memory())
        else:
            step, loss_sum, count, norm, rate = values
            self._step(int(step), float(loss_sum), float(count), float(norm), float(rate))

    def _step(self, step: int, loss_sum: float, count: float, norm: float, rate: float) -> None:
        self._newest = max(self._newest, step)
        self._steps += 1
        self._tokens += count
        loss = loss_sum / count if count else math.nan
        every = self.cfg.log_every
        if step // every == self._reported // every and self._reported >= 0 and math.isfinite(loss):
            return
        self._reported = step
        now = time.perf_counter()
        seconds = max(now - self._began, 1e-9)
        speed = self._tokens / seconds
        self.progress.record(
            "train",
            step,
            loss=loss,
            tokens_per_second=speed,
            learning_rate=rate,
            grad_norm=norm,
            step_seconds=seconds / self._steps,
            memory_bytes=peak_memory(),
        )
        self.progress.say(
            f"step {step}/{self.cfg.steps}  loss {loss:.4f}  grad norm {norm:.3f}  lr {rate:.2e}  "
            f"{speed:,.0f} tokens/s here, one of {self._steps} steps"
        )
        self._began, self._steps, self._tokens = now, 0, 0.0


def serve(cfg: Config, cluster: Cluster, stop: StopRequest) -> None:
    """Serve the chief until it has gone. Raises ClusterError when it never comes."""
    member = cluster.member()
    found = own_gpu(cfg.device, cluster.index_here()) if cluster.kind == "worker" else gpus("cpu")
    with closing(Progress(member)) as progress:
        voice = Voice(cfg, progress)
        progress.record("init", 0)
        _listen(voice)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=cluster.kind,
            task_index=cluster.index,
            protocol="grpc",
        )
        where = "its GPU" if found else "the CPU"
        progress.say(f"{cluster.name} serves the chief at {cluster.chief} on {where}")
        _stay(cluster, voice, stop, progress)
        progress.say(f"{cluster.name}: {'done' if voice.ended.is_set() else 'the chief has gone, leaving'}")
        del server


def _listen(voice: Voice) -> None:
    """Read what this process prints: lines with the mark are for `voice`, others go on to where they went."""
    real = os.dup(1)
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.close(writer)
    sys.stdout = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="replace")

    def read() -> None:
        with os.fdopen(reader, "rb") as lines:
            for line in lines:
                words = line.decode("utf-8", "replace").split()
                if words[:1] == [MARK]:
                    try:
                        voice.hear(words[1:])
                    except ValueError:
                        pass  # a line of another version, or not of the chief
                else:
                    os.write(real, line)

    threading.Thread(target=read, name="voice", daemon=True).start()


def _stay(cluster: Cluster, voice: Voice, stop: StopRequest, progress: Progress) -> None:
    host, _, port = cluster.chief.rpartition(":")
    began = seen = time.monotonic()
    came = told = False
    while True:
        time.sleep(LOOK_SECONDS)
        if stop and not told and not voice.ended.is_set():
            told = True
            progress.say(f"asked to stop ({stop.signal}): leaving when the chief has")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS * 4).close()
        except ConnectionRefusedError:
            if came or stop:
                return
        except OSError:
            if came and time.monotonic() - seen > SILENT_SECONDS:
                return
        else:
            came, seen = True, time.monotonic()
        if not came and time.monotonic() - began > FIRST_SECONDS:
            raise ClusterError(
                f"no chief at {cluster.chief} within {FIRST_SECONDS:.0f} s: start it, and this again"
            )
