"""A run that stalls or failed on the screen: who is to blame, where every rank is, what happened before."""

from __future__ import annotations

import asyncio
import dataclasses
import tarfile
import time
from pathlib import Path

import pytest
from driving import Driver, driving
from fake_stalls import crashed, frozen, hang, own, rank, remembered, stalled, stalled_demo, stalled_group
from feed import FakeHost, Feed, cpu_demo, small, two_by_four
from waiting import eventually

from agent import wire
from agent.diagnosis.evidence import Evidence, Frame, Thread
from tui import alerts, diagnosis_facts, run_facts
from tui.fleet import timeline
from tui.fleet.errors import RequestRefused
from tui.fleet.store import Link
from tui.screens.diagnosis import DiagnosisScreen
from tui.screens.restart import RestartScreen
from tui.screens.run import RunScreen
from tui.screens.timeline import TimelineScreen
from tui.screens.timeline import lines as timeline_lines
from tui.widgets.rank_table import RankTable
from tui.widgets.run_banner import RunBanner
from tui.widgets.stack_view import StackView

RUN = "gpt-0412"


def asked(driver: Driver, host: str = "vast-a", method: str = "evidence") -> int:
    return sum(name == method for name, _ in driver.fleet.sessions[host].asked)


def rows(driver: Driver) -> list[int]:
    return driver.app.screen.query_one(RankTable).rows


# --- the run screen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(140, 40), (80, 24)])
async def test_a_stall_takes_the_header_over(tmp_path: Path, size: tuple[int, int]) -> None:
    async with driving(stalled(), tmp_path, size=size, start_run=RUN) as driver:
        await driver.sees("read_shard")
        said = driver.app.screen.query_one(RunBanner).text
        assert said.startswith(" ▲ stalled ")
        assert "rank 3 on vast-a waits for the disk in read_shard" in said
        assert "d evidence   r restart as attempt 2   S stop" in said
        assert "looked" in said
        assert rows(driver)[:3] == [3, 0, 1], "the one to blame is on top, the others keep their order"
        assert driver.app.screen.query_one(RankTable).cursor == 3
        line = driver.line("read_shard (tokens.py:88)") if size[0] > 80 else driver.line("8411/8411")
        assert "▲" in line
        await driver.sees("8411/8412 all_reduce")
        await driver.sees("rank 3 log")
        if size[0] == 140:
            await driver.sees("rank 3 stack")
        else:
            assert "rank 3 stack" not in driver.text


async def test_what_the_host_says_stands_until_all_ranks_were_looked_at(tmp_path: Path) -> None:
    async with driving(stalled(), tmp_path, size=(140, 40)) as driver:
        held = driver.fleet.sessions["vast-a"].held = asyncio.Event()
        await driver.command(f"run {RUN}")
        await driver.sees("◌ looking at all ranks")
        assert "rank 3 is stuck in the kernel" in driver.line("▲ stalled")
        assert rows(driver)[0] == 3
        assert "WHERE" not in driver.text
        held.set()
        await driver.sees("rank 3 on vast-a waits for the disk")
        await driver.sees("WHERE")


async def test_a_run_that_is_well_is_calm_and_nobody_is_asked(tmp_path: Path) -> None:
    feed = small()
    async with driving(feed, tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.sees("● running")
        assert "WHERE" not in driver.text and "stack" not in driver.text
        assert rows(driver)[:2] == [0, 1]
        assert asked(driver) == 0
        hang(feed, RUN, 5)
        await driver.sees("WHERE")
        assert rows(driver)[0] == driver.app.screen.query_one(RankTable).cursor == 5
        feed.change_run("vast-a", RUN, state="running", reason="")
        await driver.refresh()
        assert "● running" in driver.text and "WHERE" not in driver.text
        assert rows(driver)[:2] == [0, 1]


async def test_all_ranks_are_looked_at_again_while_the_run_stalls_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.examining.AGAIN_SECONDS", 0.1)
    feed = stalled()
    async with driving(feed, tmp_path, start_run=RUN) as driver:
        await eventually(lambda: asked(driver) >= 3, 10, "asked again")
        await driver.command("runs")
        examination = driver.app.examinations.of(RUN)
        await eventually(lambda: not examination.asking, 5, "an answer")
        before = asked(driver)
        await driver.pilot.pause(0.6)
        assert asked(driver) == before, "nobody looks at the run, so nobody asks"


async def test_a_host_that_cannot_be_asked_is_said(tmp_path: Path) -> None:
    async with driving(stalled(), tmp_path, size=(140, 40)) as driver:
        driver.fleet.sessions["vast-a"].refuse["evidence"] = RequestRefused(
            "unknown-method", "No such method."
        )
        await driver.command(f"run {RUN}")
        await driver.sees("its ranks cannot be looked at")
        await driver.sees("older encamp")
        await driver.sees("rank 3 is stuck in the kernel")


async def test_of_several_hosts_the_joint_verdict_counts(tmp_path: Path) -> None:
    async with driving(stalled_group(), tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.sees("rank 6 on vast-b waits for the disk")
        assert rows(driver)[0] == 6
        assert "wait in number 8412" not in driver.text


@pytest.mark.parametrize("start", ["fleet", "runs"])
async def test_lists_name_the_rank_to_blame(tmp_path: Path, start: str) -> None:
    async with driving(stalled_group(), tmp_path, size=(140, 30)) as driver:
        if start == "runs":
            await driver.press("R")
            assert "rank 6 is stuck in the kernel" in driver.line(RUN)
            await driver.press("d")
            assert isinstance(driver.app.screen, DiagnosisScreen)
            return
        assert "stalled rank 6" in driver.line("vast-b")


# --- the diagnosis ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(200, 50), (80, 24)])
async def test_the_diagnosis_shows_verdict_ranks_and_stack(tmp_path: Path, size: tuple[int, int]) -> None:
    async with driving(stalled_group(), tmp_path, size=size, start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("▲ slow-storage")
        assert "fleet › gpt-0412 › diagnosis" in driver.line("encamp")
        await driver.sees(" s · almost certain")
        await driver.sees("nfs_wait_bit_killable")
        stack = driver.app.screen.query_one(StackView)
        await eventually(lambda: "self.file.readinto(self.buffer)" in stack.text, 5, "the stack")
        assert "▸ data/tokens.py:88  read_shard" in stack.text
        assert "rank.py" not in stack.text, "our own frames say the same everywhere"
        await driver.press("j")
        await eventually(lambda: "dist.all_reduce(loss)" in stack.text, 5, "the stack of rank 0")
        other = next(line for line in stack.text.splitlines() if "c10d.py" in line)
        assert "▸" not in other
        await driver.press("escape")
        assert isinstance(driver.app.screen, RunScreen)


async def test_the_diagnosis_of_a_run_that_is_well(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.command("diagnose")
        await driver.sees("● healthy   all ranks make progress")
        await driver.sees("rank 0 stack")
        await driver.sees("average (train.py:231)")
        assert asked(driver) == 1
        await driver.press("d")
        await eventually(lambda: asked(driver) == 2, 5, "asked again")


async def test_the_diagnosis_of_a_crash_shows_who_failed_first(tmp_path: Path) -> None:
    async with driving(crashed(), tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("▲ out-of-memory")
        await driver.sees("rank 3 on vast-a ran out of memory")
        assert rows(driver)[0] == 3
        await driver.sees("forward (model.py:61)")
        await driver.sees("ranks 0, 2, 4 and 6  exit  was killed by signal 15, a consequence")
        stack = driver.app.screen.query_one(StackView)
        await eventually(lambda: "rank 3 traceback" in stack.text, 5, "the traceback")
        assert "torch.OutOfMemoryError" in stack.text and "frozen runpy" not in stack.text
        await driver.sees("○    1")
        await driver.press("j", "j")
        await eventually(lambda: "a consequence" in stack.text, 5, "why rank 1 ended")


async def test_the_rank_that_was_killed_first_is_not_shown_as_a_consequence(tmp_path: Path) -> None:
    feed = small()
    codes = dict.fromkeys(range(8), 1) | {3: -9}
    feed.end_run("vast-a", RUN, "failed", codes, reason="rank 3 was killed by SIGKILL.", exit_code=1)
    async with driving(feed, tmp_path, size=(140, 40), start_run=RUN) as driver:
        assert rows(driver)[:3] == [3, 0, 1]
        assert driver.app.screen.query_one(RankTable).cursor == 3
        assert "✕    3" in driver.line("signal 9")


def test_files_of_libraries_and_of_sent_code_are_named_by_their_end() -> None:
    sent = f"/root/.encamp/code/{'0a' * 32}/trainer/loop.py"
    for file, said in ((sent, "trainer/loop.py:7"), ("/opt/lib/python3.11/runpy.py", "runpy.py:7")):
        assert diagnosis_facts.file_words(Frame(file, 7, "run", False)) == said


async def test_a_host_that_is_away_is_in_the_diagnosis(tmp_path: Path) -> None:
    feed = two_by_four()
    feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.")
    async with driving(feed, tmp_path, size=(120, 40), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("▲ host-unreachable")
        await driver.sees("vast-b is not in it: No route to host.")
    feed.store.set_link("vast-a", Link.UNREACHABLE, "No route to host.")
    async with driving(feed, tmp_path / "two", size=(120, 40), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("No route to host. d looks again.")
        await driver.command("diagnose nobody")
        await driver.is_told("No host knows a run nobody.")


async def test_earlier_stalls_and_attempts_are_paged_through(tmp_path: Path) -> None:
    feed = stalled_group()
    remembered(feed, tmp_path)
    async with driving(feed, tmp_path, size=(120, 36), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("▲ slow-storage")
        await driver.sees("[ ] past")
        await driver.press("left_square_bracket")
        await driver.sees("past, 3 of 4")
        await driver.sees("rank 6 on vast-b waits for the disk")
        assert "attempt 2" in driver.line("past, 3 of 4") and "stall of" in driver.line("past, 3 of 4")
        assert rows(driver)[:2] == [6, 0]
        await driver.press("left_square_bracket")
        await driver.sees("○ stopped   it was stopped: Stopped by maria.")
        assert "attempt 1 · ○ past, 2 of 4" in driver.line("past")
        asked_before = asked(driver)
        await driver.press("left_square_bracket", "left_square_bracket")
        await driver.sees("past, 1 of 4")
        await driver.sees("▲ stopped   rank 6 is stopped by a signal (SIGSTOP)")
        await driver.sees("vast-a is not in it: it called no stall then.")
        assert rows(driver) == [6, 4, 5, 7], "only of these it is known how they were"
        assert driver.app.screen.query_one(RankTable).cursor == 6
        assert driver.app.focused is driver.app.screen.query_one(RankTable)
        assert "T stopped" in driver.line("▲    6")
        await driver.pilot.pause(0.4)
        assert asked(driver) == asked_before, "nobody is asked how the past is"
        await driver.press(*["right_square_bracket"] * 3)
        await driver.sees("▲ slow-storage")
        await driver.sees("▲ stalled")
        assert rows(driver)[-1] == run_facts.LAUNCHER - 1, "now the launchers are there as well"


async def test_a_stall_that_no_host_has_kept_is_said(tmp_path: Path) -> None:
    async with driving(stalled(), tmp_path, size=(120, 36), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("[ ] past")
        await driver.press("left_square_bracket")
        await driver.sees("past, 1 of 2")
        await driver.sees("the run has no 'attempts/1/stall-1.json'")
        await driver.press("d")
        await driver.sees("▲ slow-storage")


async def test_a_rank_that_a_signal_has_stopped_is_let_go_on_by_a_key(tmp_path: Path) -> None:
    async with driving(frozen(), tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.sees("C let rank 3 go on   d evidence   r restart as attempt 2")
        await driver.press("r")
        await driver.sees("esc, then C: SIGCONT lets rank 3 go on, and no step is lost")
        await driver.press("escape", "d")
        await driver.sees("process 48003 is stopped (T): SIGCONT lets it go on")
        await driver.sees("encamp signal gpt-0412 --rank 3 --signal CONT")
        await driver.press("C")
        await driver.is_told("gpt-0412: SIGCONT was sent to rank 3.")
        (sent,) = (params for name, params in driver.fleet.sessions["vast-a"].asked if name == "signal")
        assert (sent["rank"], sent["signal"]) == (3, "SIGCONT") and sent["actor"]


async def test_only_ranks_that_are_stopped_are_let_go_on_and_not_in_read_only_mode(tmp_path: Path) -> None:
    async with driving(stalled(), tmp_path, size=(140, 40), start_run=RUN) as driver:
        await driver.press("C")
        await driver.command("continue gpt-0412")
        await driver.is_told("No rank of gpt-0412 is stopped by a signal.")
        assert len(driver.notices) == 1, "the key does nothing"
        assert "let go on" not in driver.text
    async with driving(frozen(), tmp_path / "two", size=(140, 40), start_run=RUN, read_only=True) as driver:
        await driver.sees("d evidence")
        await driver.press("C")
        assert "C let" not in driver.text and "let go on" not in driver.text
        assert asked(driver, method="signal") == 0


async def test_evidence_goes_into_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with driving(stalled(), tmp_path / "config", size=(120, 40), start_run=RUN) as driver:
        (tmp_path / "config" / "runs-of" / "vast-a" / "attempts" / "1").mkdir(parents=True)
        await driver.press("d")
        await driver.sees("slow-storage")
        await driver.press("b")
        await driver.is_told("all evidence", 20)
        (bundle,) = tmp_path.glob("gpt-0412-attempt-1-*.tar.gz")
        with tarfile.open(bundle) as archive:
            assert any(name.endswith("evidence.json") for name in archive.getnames())


async def test_restart_from_the_diagnosis_and_not_in_read_only_mode(tmp_path: Path) -> None:
    async with driving(stalled(), tmp_path, size=(120, 40), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("slow-storage")
        await driver.press("r")
        assert isinstance(driver.app.screen, RestartScreen)
        await driver.sees("all 8 ranks")
        await driver.sees("It begins at step 1 again: there is no complete checkpoint")
        assert "rank 3 is stuck in the kernel" in driver.line("why")
        await driver.press("escape")
        driver.fleet.sessions["vast-a"].checkpoints = [100, 200]
        await driver.press("r")
        await driver.sees("It goes on from step-200, complete on vast-a")
        await driver.sees("Lost: 41 steps")
    async with driving(stalled(), tmp_path / "two", size=(120, 40), start_run=RUN, read_only=True) as driver:
        await driver.sees("read_shard")
        assert "restart" not in driver.text and "S stop" not in driver.text
        await driver.press("d")
        await driver.sees("slow-storage")
        await driver.press("r")
        assert isinstance(driver.app.screen, DiagnosisScreen)


async def test_what_a_host_says_cannot_draw(tmp_path: Path) -> None:
    feed = cpu_demo()

    def looked(host: FakeHost, info: wire.Run) -> Evidence:
        bad = "\x1b[2Jowned\x07\r\n" * 20
        found = []
        for number in own(info):
            frame = dataclasses.replace(
                rank(host, number).threads[0].frames[2], file=bad, function=bad, source=bad
            )
            found.append(rank(host, number, phase=bad, threads=(Thread(bad, True, (frame,)),)))
        return Evidence(RUN, 1, time.time(), 2, 1.0, tuple(found), (), 4.0)

    feed.evidence[RUN] = looked
    async with driving(feed, tmp_path, size=(120, 40), start_run=RUN) as driver:
        await driver.press("d")
        await driver.sees("rank 0 stack")
        await driver.sees("owned")
        assert "\x1b" not in driver.text and "\x07" not in driver.text


# --- the timeline -------------------------------------------------------------------------------------------


async def test_the_timeline_tells_both_attempts(tmp_path: Path) -> None:
    async with driving(stalled_group(), tmp_path, size=(120, 30), start_run=RUN) as driver:
        await driver.press("T")
        await driver.sees("attempt 2")
        assert isinstance(driver.app.screen, TimelineScreen)
        assert driver.text.count("launched") == 1, "one launch, however many hosts"
        assert "by maria@laptop" in driver.line("launched")
        await driver.sees("for 1 min 28 s · stopped: rank 6")
        assert "on vast-b" in driver.line("for 1 min 28 s")
        await driver.sees("so far · kernel-wait: rank 6")
        assert driver.text.index("attempt 1") < driver.text.index("resumed") < driver.text.index("attempt 2")


async def test_the_timeline_without_events_and_without_hosts(tmp_path: Path) -> None:
    feed = two_by_four()
    async with driving(feed, tmp_path, start_run=RUN) as driver:
        await driver.command("timeline")
        await driver.sees("no record of what happened")
        feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.")
        await driver.sees("not in it: vast-b: No route to host.")


def test_saves_in_a_row_are_one_line() -> None:
    feed = cpu_demo()
    records = tuple({"time": feed.time + step, "step": step, "phase": "save"} for step in (100, 200, 300))
    feed.store.apply("demo-1", wire.Progress(RUN, 1, 0, records))
    found = feed.store.find_run(RUN)
    assert found is not None
    together = timeline._together(timeline.saves(found))
    assert [(moment.times, moment.text) for moment in together] == [(3, "at step 300")]
    shown = "".join(text for line in timeline_lines(together, 80, feed.time, live=True) for text, _ in line)
    assert "3 times, last at step 300" in shown


# --- aloud --------------------------------------------------------------------------------------------------


def test_trouble_is_told_once_and_only_when_it_is_new() -> None:
    feed, listening = small(), alerts.Alerts()
    assert listening.news(feed.store) == []
    hang(feed, RUN, 3)
    (alert,) = listening.news(feed.store)
    assert (alert.run, alert.state) == (RUN, "stalled") and "rank 3" in alert.text
    feed.store.set_link("vast-a", Link.UNREACHABLE, "")
    assert listening.news(feed.store) == []
    feed.store.set_link("vast-a", Link.LIVE)
    feed.change_run("vast-a", RUN, reason="rank 3 still sleeps")
    assert listening.news(feed.store) == [], "it was told before the host was out of reach"
    feed.change_run("vast-a", RUN, state="running", reason="")
    assert listening.news(feed.store) == []
    feed.change_run("vast-a", RUN, state="stalled", reason="rank 1 sleeps")
    assert [alert.text for alert in listening.news(feed.store)] == ["rank 1 sleeps"]
    feed.end_run("vast-a", RUN, "failed", {3: 1}, reason="rank 3 ended with exit code 1.", exit_code=1)
    assert [alert.state for alert in listening.news(feed.store)] == ["failed"]
    feed.run("vast-b", "brief", state="failed", started=time.time() + 60, reason="no such file")
    assert [alert.run for alert in listening.news(feed.store)] == ["brief"], "it began while we watched"


def test_what_was_so_before_is_no_news() -> None:
    feed = Feed(wall=time.time() - 600)
    feed.add(FakeHost("a"))
    feed.run("a", "old", state="failed", reason="long ago")
    assert alerts.Alerts().news(feed.store) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color"}, "\x1b]9;encamp: gpt stalled: rank 3, read\x07"),
        ({"TERM": "foot"}, "\x1b]777;notify;encamp: gpt stalled;rank 3, read\x07"),
        (
            {"TERM": "xterm-256color", "VTE_VERSION": "7600"},
            "\x1b]777;notify;encamp: gpt stalled;rank 3, read\x07",
        ),
        (
            {"TERM": "tmux-256color", "TMUX": "/tmp/tmux"},
            "\x1bPtmux;\x1b\x1b]9;encamp: gpt stalled: rank 3, read\x07\x1b\\",
        ),
        ({"TERM": "linux"}, ""),
        ({}, ""),
    ],
)
def test_each_terminal_gets_what_it_knows(environment: dict[str, str], expected: str) -> None:
    assert alerts.sequence(alerts.Alert("gpt", "stalled", "rank 3; read"), environment) == expected


@pytest.mark.parametrize("off", [False, True])
async def test_the_app_rings_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    monkeypatch.setattr(alerts, "SECONDS", 0.05)
    monkeypatch.setenv("ENCAMP_NO_BELL", "1" if off else "")
    monkeypatch.setenv("TERM", "xterm-256color")
    feed = cpu_demo()
    async with driving(feed, tmp_path) as driver:
        rung: list[str] = []
        monkeypatch.setattr(driver.app, "bell", lambda: rung.append("bell"))
        monkeypatch.setattr(driver.app, "write_sequence", rung.append)
        await driver.pilot.pause(0.2)
        hang(feed, RUN, 1)
        await driver.is_told("gpt-0412 stalled: rank 1 is stuck")
        assert [word[:4] for word in rung] == ([] if off else ["bell", "\x1b]9;"])
    async with driving(stalled_demo(), tmp_path / "two", start_run=RUN) as driver:
        await driver.pilot.pause(0.3)
        assert not driver.notices, "what is on the screen is not said again"


# --- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "ranks", "words"),
    [
        ("rank 3 on vast-a is stopped", [3], "rank 3"),
        ("ranks 0, 2 and 3 wait", [0, 2, 3], "ranks 0, 2 and 3"),
        ("ranks 0, 1, 2, 3 and 4 wait", [0, 1, 2, 3, 4], "5 ranks"),
        ("all ranks wait in number 7", [], ""),
        ("the GPU of rank 3 is faulty", [], ""),
        ("", [], ""),
    ],
)
def test_ranks_to_blame_are_read_from_a_sentence(sentence: str, ranks: list[int], words: str) -> None:
    assert diagnosis_facts.blamed(sentence) == ranks
    assert diagnosis_facts.blamed_words(sentence) == words
