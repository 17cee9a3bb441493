"""What is said about hosts and runs at a glance."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
from feed import FakeHost, Feed, cpu_demo, sample, small

from agent import wire
from tui import facts, run_facts, training_facts
from tui import formatting as fmt
from tui.fleet.store import HostView, Link, RunView


def view(feed: Feed, name: str) -> HostView:
    return feed.store.hosts[name]


def mark(host: HostView, late: float = 0.0) -> str:
    return facts.mark_now(host, facts.host_facts(host), time.monotonic() + late).word


def test_a_host_with_a_live_run_is_live_and_one_without_is_idle() -> None:
    feed = small(seconds=2)
    assert mark(view(feed, "vast-a")) == "live"
    assert mark(view(feed, "hetzner-1")) == "idle"
    words = facts.state_words(
        view(feed, "hetzner-1"), facts.host_facts(view(feed, "hetzner-1")), time.monotonic()
    )
    assert words[0] == "idle 3 h"


def test_gpus_are_added_up() -> None:
    said = facts.host_facts(view(small(seconds=1), "vast-a"))
    assert said.gpus is not None
    assert (said.gpus.number_of, said.gpus.model) == (8, "RTX 4090")
    assert said.gpus.memory_total == 8 * 24 * fmt.GIB
    assert len(said.gpus.each) == 8
    assert said.ranks_by_gpu[5] == ("gpt-0412", 5)


def test_a_host_without_gpus_has_none_and_no_problem() -> None:
    said = facts.host_facts(view(cpu_demo(seconds=1), "demo-1"))
    assert said.gpus is None
    assert said.gpu_problem == ""
    assert said.mark.tone == fmt.GOOD


def test_a_driver_that_cannot_be_read_is_trouble() -> None:
    feed = small(seconds=1)
    taken = sample(feed.hosts["hetzner-1"], 1, feed.time)
    status = wire.GpuStatus("mismatch", "driver and library differ", feed.time)
    feed.store.apply("hetzner-1", dataclasses.replace(taken, gpu=status))
    assert mark(view(feed, "hetzner-1")) == "driver mismatch"
    assert facts.severity(facts.host_facts(view(feed, "hetzner-1")).mark) == 0


def test_one_lost_gpu_is_trouble_and_is_named() -> None:
    feed = small(seconds=1)
    taken = sample(feed.hosts["vast-a"], 1, feed.time)
    gpus = list(taken.gpu.gpus)
    gpus[3] = wire.GpuSample(index=3, uuid="x", name=gpus[3].name, state="lost")
    feed.store.apply(
        "vast-a", dataclasses.replace(taken, gpu=dataclasses.replace(taken.gpu, gpus=tuple(gpus)))
    )
    assert mark(view(feed, "vast-a")) == "GPU 3 lost"


def test_a_live_host_that_falls_silent_does_not_look_fine() -> None:
    host = view(small(seconds=1), "vast-a")
    assert not facts.stale(host, time.monotonic() + 2)
    assert facts.stale(host, time.monotonic() + 4)
    assert mark(host, late=9) == "live"
    assert mark(host, late=30) == "silent 30 s"


def test_gpus_that_hang_are_told_apart_from_the_host() -> None:
    feed = small(seconds=1)
    taken = sample(feed.hosts["vast-a"], 1, feed.time)
    old = dataclasses.replace(taken.gpu, time=feed.time - 12)
    feed.store.apply("vast-a", dataclasses.replace(taken, gpu=old))
    assert facts.gpu_stale_seconds(view(feed, "vast-a")) == pytest.approx(12)


def test_a_failed_run_is_trouble_until_the_next_one_starts() -> None:
    feed = small(seconds=1)
    feed.change_run("vast-b", "vit-large", state="failed", exit_code=1, ended=feed.time)
    assert mark(view(feed, "vast-b")) == "run failed"
    feed.run("vast-b", "vit-again", ranks=4, started=feed.time + 5)
    assert mark(view(feed, "vast-b")) == "live"


def test_bad_messages_are_counted_in_the_open() -> None:
    feed = small(seconds=1)
    feed.store.count_bad_message("vast-a")
    assert mark(view(feed, "vast-a")) == "1 bad message"
    assert facts.severity(facts.host_facts(view(feed, "vast-a")).mark) == 1


@pytest.mark.parametrize(
    ("link", "hint", "step"),
    [
        (Link.IDLE, "", "c connect now"),
        (Link.UNREACHABLE, "", "retry in 8 s · c connect now"),
        (Link.RECONNECTING, "", "retry in 8 s · c connect now"),
        (Link.AUTH_FAILED, "", "retry in 8 s · c try again"),
        (Link.REFUSED, "", "retry in 8 s · c try again"),
        (Link.KEY_CHANGED, "", "retry in 8 s · K details"),
        (Link.CONFIRM_KEY, "", "retry in 8 s · waiting for your answer"),
        (Link.CONFIRM_KEY, "Compare it.", "retry in 8 s · c look at it again"),
    ],
)
def test_every_link_has_a_next_step(link: Link, hint: str, step: str) -> None:
    feed = Feed()
    feed.add(FakeHost("a"), link)
    now = time.monotonic()
    feed.store.set_link("a", link, "It broke.", hint, None if link is Link.IDLE else now + 8)
    known, todo = facts.next_step(view(feed, "a"), facts.host_facts(view(feed, "a")), now)
    assert todo == step
    assert "It broke." in known


def test_links_that_are_working_say_for_how_long() -> None:
    feed = Feed()
    feed.add(FakeHost("a"), Link.CONNECTING)
    host = view(feed, "a")
    host.since = time.time() - 5
    assert facts.next_step(host, facts.host_facts(host), time.monotonic()) == (["5 s"], "")


def test_an_unreachable_host_says_what_goes_on_there() -> None:
    feed = small(seconds=1)
    feed.store.set_link("vast-a", Link.UNREACHABLE, "No route.")
    host = view(feed, "vast-a")
    known, _ = facts.next_step(host, facts.host_facts(host), host.received + 240)
    assert known[1:] == ["last seen 4 min ago", "1 run going on there", "No route."]


def test_all_links_but_live_have_a_mark() -> None:
    assert set(facts.LINK_MARKS) == set(Link) - {Link.LIVE}


# --- runs --------------------------------------------------------------------------------------------------


def whole(feed: Feed, run: str) -> RunView:
    found = feed.store.find_run(run)
    assert found is not None
    return found


def sentence(feed: Feed, host: str, run: str) -> tuple[str, str, str]:
    found = whole(feed, run)
    assert found.host.name == host
    mark, _, what, keys = run_facts.state_sentence(found, time.monotonic())
    return mark.word, what, keys


def test_a_running_run_says_where_it_is() -> None:
    word, what, keys = sentence(small(seconds=10), "vast-a", "gpt-0412")
    assert word == "running"
    assert what.startswith("step 21 · 0.4")
    assert keys == ""


def test_a_failed_run_gives_its_reason_and_what_to_do() -> None:
    feed = small(seconds=1)
    feed.change_run(
        "vast-a",
        "gpt-0412",
        state="failed",
        reason="rank 3: /root/.encamp/runs/gpt-0412/checkpoints/step-200 cannot be read.",
        exit_code=1,
        ended=feed.time,
    )
    word, what, keys = sentence(feed, "vast-a", "gpt-0412")
    assert (word, what) == ("failed", "rank 3: checkpoints/step-200 cannot be read.")
    assert keys == "d diagnose   l logs   r restart as attempt 2"


def test_only_files_of_the_run_itself_are_named_shortly() -> None:
    assert run_facts.shorter("'/a/runs/gpt/x' and /a/runs/gpt-2/x", "gpt") == "'x' and /a/runs/gpt-2/x"


def test_a_live_run_on_a_lost_host_is_not_said_to_run() -> None:
    feed = small(seconds=10)
    feed.store.set_link("vast-a", Link.UNREACHABLE, "No route.")
    word, what, keys = sentence(feed, "vast-a", "gpt-0412")
    assert word == "unreachable"
    assert "ago the run was running at step 21" in what
    assert keys.startswith("c connect now")
    feed.store.set_link("vast-a", Link.RECONNECTING, "Lost.")
    assert sentence(feed, "vast-a", "gpt-0412")[0] == "reconnecting"


def test_the_settings_are_read_off_the_command() -> None:
    feed = small(seconds=1)
    command = ("python", "-m", "trainer", "--precision", "bf16", "--micro-batch=8", "--accumulation", "4")
    feed.change_run("vast-a", "gpt-0412", command=command)
    assert run_facts.headline(whole(feed, "gpt-0412")) == [
        "batch 8 × 4", "bf16", "vast-a", "8 ranks", "ddp", "attempt 1",
    ]  # fmt: skip


def trained(**said: Any) -> RunView:
    """A run whose trainer says this of itself."""
    feed = small(seconds=1)
    feed.change_run("vast-a", "gpt-0412", strategy=said.get("strategy", "ddp"))
    feed.hosts["vast-a"].training["gpt-0412"] = wire.Training(**said)
    feed.advance(1)
    return whole(feed, "gpt-0412")


def test_what_the_trainer_says_of_itself_goes_before_the_command() -> None:
    batch = {"global_batch": 512, "micro_batch": 16, "accumulation": 8}
    run = trained(strategy="fsdp+tp", precision="bf16", mesh_data=4, mesh_tensor=2, steps=5000, **batch)
    assert run_facts.headline(run) == [
        "batch 512 = 16 × 8 × 4", "bf16", "vast-a", "8 ranks", "fsdp+tp 4 × 2", "attempt 1",
    ]  # fmt: skip
    assert run_facts.state_sentence(run, time.monotonic())[2].startswith("step 5 of 5 000 · ")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"mesh_data": 8, "mesh_tensor": 1, "mesh_pipeline": 1, "mesh_replicas": 1}, ""),
        ({"mesh_data": 4, "mesh_replicas": 2}, "2 copies × 2 shards"),
        ({"mesh_data": 2, "mesh_tensor": 2, "mesh_pipeline": 1}, "2 × 2"),
        ({"mesh_data": 2, "mesh_tensor": 4, "mesh_pipeline": 8}, "2 × 4 × 8"),
        ({"mesh_data": 1, "mesh_pipeline": 4}, ""),
        ({}, ""),
    ],
)
def test_how_ranks_share_the_work_in_words(said: dict[str, int], words: str) -> None:
    assert training_facts.shared(wire.Training(**said)) == words


def test_a_batch_in_which_a_share_is_no_multiple_is_not_taken_apart() -> None:
    said = wire.Training(global_batch=20, micro_batch=8, accumulation=2, mesh_data=2)
    assert training_facts.batch(said) == "batch 20"
    assert training_facts.batch(wire.Training()) == ""


def test_how_training_goes_by_the_newest_records_that_say() -> None:
    feed = small(seconds=1)
    records: tuple[wire.Record, ...] = (
        {"step": 9, "data_wait": 0.07, "grad_norm": 0.5, "mfu": "unknown", "loss_scale": 65536.0},
        {"step": 10, "grad_norm": "nan", "learning_rate": 3e-4, "skipped_steps": 1, "overflowed_steps": 2},
        {"step": 10, "phase": "save"},
    )
    feed.store.apply("vast-a", wire.Progress("gpt-0412", 1, 0, records))
    assert training_facts.numbers(whole(feed, "gpt-0412")) == [
        ("data wait", "  7 %"), ("grad norm", "nan"), ("lr", "3.0e-04"), ("loss scale", " 65536"),
        ("skipped steps", "3"),
    ]  # fmt: skip
    lies: wire.Record = {
        "step": 11,
        "data_wait": "\x1b[2J",
        "grad_norm": "owned",
        "mfu": 9.0,
        "skipped_steps": True,
    }
    feed.store.apply("vast-a", wire.Progress("gpt-0412", 1, 0, (lies,) * 64))
    assert training_facts.numbers(whole(feed, "gpt-0412")) == []


def test_a_loss_that_is_no_number_is_not_drawn_but_known() -> None:
    feed = small(seconds=3)
    feed.store.apply("vast-a", wire.Progress("gpt-0412", 1, 0, ({"step": 9, "loss": "nan"},)))
    run = whole(feed, "gpt-0412")
    assert run_facts.metric(run, "loss")[-1] == (9.0, None)
    assert run_facts.latest(run, "loss") == "nan"


def test_utilisation_is_of_the_runs_own_gpus() -> None:
    feed = small(seconds=5)
    host = view(feed, "vast-a")
    run = host.runs["gpt-0412"]
    del run.ranks[7], run.ranks[6]
    points = run_facts.utilization(whole(feed, "gpt-0412"))
    assert len(points) == 5
    assert points[-1][1] == fmt.mean(host.gpu_utilization[index].last for index in range(6))
    demo = whole(cpu_demo(seconds=4), "gpt-0412")
    assert run_facts.utilization(demo)[-1][1] == demo.host.cpu.last


def test_what_gpus_do_after_a_run_is_not_the_runs_doing() -> None:
    feed = small(seconds=5)
    feed.change_run("vast-a", "gpt-0412", state="finished", ended=feed.start + 3)
    assert len(run_facts.utilization(whole(feed, "gpt-0412"))) == 3


def test_sentences_wrap() -> None:
    assert run_facts.wrapped("a " * 40, 30, 2)[1].endswith("…")
    assert run_facts.wrapped("", 30, 2) == []
