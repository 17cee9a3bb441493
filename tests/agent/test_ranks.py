"""Ranks as seen from outside: real processes under the real shim, and every lie that a file can tell."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

import agent.rank
from agent import process, wire
from agent.ranks import RankSampler, Rhythm, gpu_index

STEPS = struct.Struct("<8sQdd")

GPUS = tuple(wire.GpuSample(index, f"GPU-{index}a{index}b-77", "RTX", "ok") for index in range(4))

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    return folder


class Sleeper:
    """A process that does what its standard input says, playing a rank."""

    CODE = (
        "import sys, time\n"
        "def burn(seconds):\n"
        "    end = time.process_time() + seconds\n"
        "    while time.process_time() < end: pass\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    exec(line)\n"
        "    print('done', flush=True)\n"
    )

    def __init__(
        self, *command: str, environment: dict[str, str] | None = None, merged: bool = False
    ) -> None:
        self.process = subprocess.Popen(
            command or [sys.executable, "-S", "-c", self.CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answered(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Sleeper]]:
    started: list[Sleeper] = []

    def start(*command: str, **options: Any) -> Sleeper:
        started.append(Sleeper(*command, **options))
        return started[-1]

    yield start
    for sleeper in started:
        sleeper.end()


def register(attempt: Path, rank: int, pid: int, **changes: Any) -> None:
    folder = attempt / f"rank{rank}"
    folder.mkdir(exist_ok=True)
    values = {
        "rank": rank, "local_rank": rank, "world_size": 2, "pid": pid,
        "start_time": process.start_time(pid), "started": time.time(), **changes,
    }  # fmt: skip
    (folder / "rank.json").write_text(json.dumps(values))


def write_steps(attempt: Path, rank: int, steps: int, wall: float, monotonic: float) -> None:
    folder = attempt / f"rank{rank}"
    folder.mkdir(exist_ok=True)
    (folder / "steps").write_bytes(STEPS.pack(b"ENCAMP1\0", steps, wall, monotonic))


def only(sampler: RankSampler, gpus: tuple[wire.GpuSample, ...] = ()) -> wire.RankSample:
    message = sampler.sample(gpus)
    assert wire.decode(wire.encode(message)) == message
    (sample,) = message.ranks
    return sample


def test_a_rank_from_its_start_to_its_end_under_the_real_shim(
    attempt: Path, start: Callable[..., Sleeper], python: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('hello', flush=True)\nfor line in sys.stdin: exec(line)\n")
    sampler = RankSampler(str(attempt), "gpt", 3, 1, first_rank=5)
    assert only(sampler) == wire.RankSample(rank=5, local_rank=0, state="starting")

    environment = {"ENCAMP_ATTEMPT_DIR": str(attempt), "RANK": "5", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}
    rank = start(python, "-u", agent.rank.__file__, "script", str(script), environment=environment)
    wait_until(lambda: only(sampler).log_bytes == len("hello\n"))
    sample = only(sampler)
    assert (sample.state, sample.pid, sample.exit_code) == ("running", rank.pid, None)
    assert sample.rss_bytes is not None
    assert 2**20 < sample.rss_bytes < 2**30
    wait_until(lambda: only(sampler).process_state == "S")

    os.kill(rank.pid, signal.SIGSTOP)
    wait_until(lambda: only(sampler).process_state == "T")
    assert only(sampler).state == "running"
    os.kill(rank.pid, signal.SIGCONT)

    rank.do("sys.exit(3)")
    wait_until(lambda: only(sampler).state != "running")
    sample = only(sampler)
    assert (sample.state, sample.exit_code, sample.pid) == ("exited", 3, rank.pid)
    assert (sample.process_state, sample.rss_bytes, sample.cpu_percent) == (None, None, None)


def test_a_rank_killed_without_a_word_is_lost(attempt: Path, start: Callable[..., Sleeper]) -> None:
    rank = start()
    register(attempt, 0, rank.pid)
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler).state == "running"
    os.kill(rank.pid, signal.SIGKILL)
    wait_until(lambda: only(sampler).state == "lost", message="a zombie counts as gone")
    assert only(sampler).exit_code is None
    (attempt / "rank0" / "exit.json").write_text('{"code": -9, "time": 1.0}')  # as the supervisor does
    assert (only(sampler).state, only(sampler).exit_code) == ("exited", -9)


def test_another_process_under_the_same_pid_is_not_the_rank(
    attempt: Path, start: Callable[..., Sleeper]
) -> None:
    other = start()
    register(attempt, 0, other.pid, start_time=12345)
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler).state == "lost"
    (attempt / "rank0" / "exit.json").write_text('{"code": -11, "time": 1.0}')
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert (only(sampler).state, only(sampler).exit_code) == ("exited", -11)


def test_a_rank_that_never_started_is_lost_once_the_attempt_is_over(attempt: Path) -> None:
    sampler = RankSampler(str(attempt), "gpt", 1, 2)
    assert [rank.state for rank in sampler.sample().ranks] == ["starting", "starting"]
    (attempt / "exit.json").write_text("{}")
    assert [rank.state for rank in sampler.sample().ranks] == ["lost", "lost"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"pid": 1}', '{"pid": "1", "start_time": 2}', '{"pid": true, "start_time": 1}',
     '{"pid": 0, "start_time": 1}', '{"pid": 1e3, "start_time": 1}',
     '{"pid": 99999999999999999999, "start_time": 1}'],
)  # fmt: skip
def test_what_is_no_registration_leaves_a_rank_starting(attempt: Path, text: str) -> None:
    (attempt / "rank0").mkdir()
    (attempt / "rank0" / "rank.json").write_text(text)
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler).state == "starting"


def test_cpu_is_of_one_core_between_two_samples(attempt: Path, start: Callable[..., Sleeper]) -> None:
    rank = start()
    assert rank.answered() == b"ready\n"
    register(attempt, 0, rank.pid)
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler).cpu_percent is None
    rank.do("burn(0.3)")
    assert rank.answered() == b"done\n"
    busy = only(sampler).cpu_percent
    assert busy is not None
    assert busy > 2, "0.3 s of the processor, in however long a time this machine took for it"
    wait_until(lambda: only(sampler).cpu_percent == 0)


def test_steps_and_their_rhythm(attempt: Path) -> None:
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler).step is None
    write_steps(attempt, 0, 0, 0.0, 0.0)
    assert only(sampler).step is None
    write_steps(attempt, 0, 1, 1000.0, 50.0)
    sample = only(sampler)
    assert (sample.step, sample.step_time, sample.step_seconds) == (1, 1000.0, None)
    write_steps(attempt, 0, 5, 1002.0, 52.0)
    assert only(sampler).step_seconds == pytest.approx(0.5)
    assert only(sampler).step_seconds == pytest.approx(0.5), "no new step is no news"
    write_steps(attempt, 0, 6, 1003.5, 53.5)
    sample = only(sampler)
    assert (sample.step, sample.step_time) == (6, 1003.5)
    assert sample.step_seconds == pytest.approx(0.5 + 0.3 * (1.5 - 0.5))
    sampler.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"ENCAMP1\0", b"X" * 32, STEPS.pack(b"ENCAMP1\0", 2**64 - 1, 1.0, 1.0),
     STEPS.pack(b"ENCAMP1\0", 5, math.nan, 1.0), STEPS.pack(b"ENCAMP1\0", 5, 1.0, math.inf)],
)  # fmt: skip
def test_what_is_no_step_counter_is_no_step(attempt: Path, data: bytes) -> None:
    (attempt / "rank0").mkdir()
    (attempt / "rank0" / "steps").write_bytes(data)
    assert only(RankSampler(str(attempt), "gpt", 1, 1)).step is None


def test_a_step_counter_cut_short_while_it_is_watched_does_no_harm(attempt: Path) -> None:
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    write_steps(attempt, 0, 4, 1.0, 1.0)
    assert only(sampler).step == 4
    os.truncate(attempt / "rank0" / "steps", 0)
    assert only(sampler).step is None


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))))
def test_the_rhythm_is_never_negative(observations: list[tuple[int, float]]) -> None:
    rhythm = Rhythm()
    for steps, at in observations:
        rhythm.observe(steps, at)
        assert rhythm.seconds is None or rhythm.seconds >= 0


@given(st.floats(1e-4, 1e3), st.lists(st.integers(1, 50), min_size=60, max_size=80))
def test_the_rhythm_of_even_steps_is_their_time(seconds: float, jumps: list[int]) -> None:
    rhythm = Rhythm()
    steps = 1
    rhythm.observe(steps, 0.0)
    for jump in jumps:
        steps += jump
        rhythm.observe(steps, steps * seconds)
    assert rhythm.seconds == pytest.approx(seconds, rel=1e-3)


def test_the_trainers_own_step_and_phase_come_first(attempt: Path) -> None:
    write_steps(attempt, 0, 7, 1000.0, 50.0)
    sampler = RankSampler(str(attempt), "gpt", 1, 2)
    progress = attempt / "rank0" / "progress.jsonl"
    progress.write_text('{"step": 407, "loss": 2.5, "phase": "train", "time": 999.0}\n')
    first, second = sampler.sample().ranks
    assert (first.step, first.step_time, first.phase) == (407, 1000.0, "train")
    assert (second.step, second.phase) == (None, None)
    assert sampler.new_progress() == [
        wire.Progress("gpt", 1, 0, ({"step": 407, "loss": 2.5, "phase": "train", "time": 999.0},))
    ]
    sampler.sample()
    assert sampler.new_progress() == []
    with progress.open("a") as file:
        file.write('{"phase": "save"}\n')
    first, _ = sampler.sample().ranks
    assert (first.step, first.phase) == (7, "save")


def test_a_program_without_torch_gets_its_rhythm_from_its_records(attempt: Path) -> None:
    (attempt / "rank0").mkdir()
    progress = attempt / "rank0" / "progress.jsonl"
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    progress.write_text('{"step": 10, "time": 100}\n')
    assert only(sampler).step_time == 100.0
    with progress.open("a") as file:
        file.write('{"step": 20, "time": 105.0}\n')
    sample = only(sampler)
    assert (sample.step, sample.step_time, sample.step_seconds) == (20, 105.0, pytest.approx(0.5))


@pytest.mark.parametrize(
    "record",
    ['{"step": "7"}', '{"step": true}', '{"step": -1}', '{"step": 1.5}', '{"step": NaN}', '{"phase": 3}'],
)
def test_what_is_no_step_is_not_shown_as_one(attempt: Path, record: str) -> None:
    (attempt / "rank0").mkdir()
    (attempt / "rank0" / "progress.jsonl").write_text(record + "\n")
    sample = only(RankSampler(str(attempt), "gpt", 1, 1))
    assert (sample.step, sample.step_time, sample.phase) == (None, None, None)


def test_how_the_trainer_shares_the_work_is_told_with_every_sample(attempt: Path) -> None:
    def say(**fields: Any) -> None:
        with (attempt / "rank4" / "progress.jsonl").open("a") as file:
            file.write(json.dumps({"time": 1.0, "step": 0, **fields}) + "\n")

    (attempt / "rank4").mkdir()
    sampler = RankSampler(str(attempt), "r", 1, 2, first_rank=4)
    say(phase="init")
    assert sampler.sample().training is None
    say(phase="init", strategy="fsdp+tp", mesh_data=2, mesh_tensor=2, micro_batch=8, colour="red")
    assert sampler.sample().training == wire.Training("fsdp+tp", mesh_data=2, mesh_tensor=2, micro_batch=8)
    say(phase="init", micro_batch=16)
    say(phase="train", precision="bf16", loss=1.0)
    found = sampler.sample()
    assert found.training == wire.Training("fsdp+tp", mesh_data=2, mesh_tensor=2, micro_batch=16)
    sampler.close()
    again = RankSampler(str(attempt), "r", 1, 2, first_rank=4, resume=True)
    assert again.sample().training == found.training, "a new daemon knows it from the file"
    assert wire.decode(wire.encode(found)) == found
    again.close()


def test_what_is_no_short_word_or_count_is_not_believed(attempt: Path) -> None:
    (attempt / "rank0").mkdir()
    lies = {
        "strategy": "x" * 33, "precision": "\x1b[31m", "ranks": True, "mesh_data": -1, "mesh_tensor": 2.5,
        "mesh_pipeline": 2**60, "mesh_replicas": "2", "global_batch": None, "steps": [1],
    }  # fmt: skip
    (attempt / "rank0" / "progress.jsonl").write_text(json.dumps({"phase": "init", **lies}) + "\n")
    sampler = RankSampler(str(attempt), "r", 1, 1)
    assert sampler.sample().training is None
    sampler.close()


def test_a_new_daemon_reports_no_record_twice(attempt: Path) -> None:
    (attempt / "rank0").mkdir()
    (attempt / "rank0" / "progress.jsonl").write_text('{"step": 5}\n')
    sampler = RankSampler(str(attempt), "gpt", 1, 1, resume=True)
    assert only(sampler).step == 5
    assert sampler.new_progress() == []


@pytest.mark.parametrize(
    ("local_rank", "visible", "expected"),
    [(0, None, 0), (3, None, 3), (4, None, None), (0, "2,3", 2), (1, "2,3", 3), (2, "2,3", None), (5, "1", 1),
     (0, "", None), (0, "-1", None), (0, "9", None), (1, "0,9,2", None), (2, "0,9,2", None),
     (0, "GPU-2a2b-77", 2), (1, "GPU-3a,GPU-1a", 1), (0, "GPU-", 0), (0, "MIG-12", None),
     (0, " 1 , 2", 1), (0, "one", None)],
)  # fmt: skip
def test_which_gpu_a_rank_uses(local_rank: int, visible: str | None, expected: int | None) -> None:
    assert gpu_index(local_rank, visible, GPUS) == expected
    assert gpu_index(local_rank, visible, ()) is None


def test_the_gpu_follows_from_the_environment_the_rank_was_started_with(
    attempt: Path, start: Callable[..., Sleeper]
) -> None:
    rank = start(environment={"CUDA_VISIBLE_DEVICES": "3,1"})
    register(attempt, 0, rank.pid, local_rank=1)
    sampler = RankSampler(str(attempt), "gpt", 1, 1)
    assert only(sampler, GPUS).gpu == 1
    assert only(sampler).gpu is None


def test_every_python_reads_the_same(attempt: Path, start: Callable[..., Sleeper], python: str) -> None:
    rank = start()
    register(attempt, 0, rank.pid)
    write_steps(attempt, 0, 12, 1000.0, 50.0)
    (attempt / "rank0" / "progress.jsonl").write_text('{"step": 12, "loss": 0.5, "phase": "train"}\n')
    (attempt / "rank0.log").write_bytes(b"hello\n")
    code = (
        "import sys; from agent import ranks, wire; s = ranks.RankSampler(sys.argv[1], 'gpt', 1, 2);"
        "sys.stdout.buffer.write(wire.encode(s.sample()) + wire.encode(s.new_progress()[0]))"
    )
    command = [python, "-c", code, str(attempt)]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout
    ranks, records = map(wire.decode, output.splitlines())
    assert isinstance(ranks, wire.Ranks)
    first, second = ranks.ranks
    assert (first.state, first.pid, first.step, first.step_time, first.phase, first.log_bytes) == (
        "running", rank.pid, 12, 1000.0, "train", 6,
    )  # fmt: skip
    assert second == wire.RankSample(rank=1, local_rank=1, state="starting")
    assert records == wire.Progress("gpt", 1, 0, ({"step": 12, "loss": 0.5, "phase": "train"},))


def test_eight_ranks_cost_less_than_a_millisecond(attempt: Path, start: Callable[..., Sleeper]) -> None:
    rank = start()
    for number in range(8):
        register(attempt, number, rank.pid)
        write_steps(attempt, number, 12, 1000.0, 50.0)
        (attempt / f"rank{number}" / "progress.jsonl").write_text('{"step": 12, "loss": 0.5}\n')
        (attempt / f"rank{number}.log").write_bytes(b"hello\n")
    sampler = RankSampler(str(attempt), "gpt", 1, 8)
    assert {sample.state for sample in sampler.sample(GPUS).ranks} == {"running"}
    batches = []
    for _ in range(10):
        started = time.process_time()
        for _ in range(20):
            sampler.sample(GPUS)
        batches.append((time.process_time() - started) / 20)
    assert min(batches) < 0.001
