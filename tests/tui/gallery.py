"""Pictures of the app in its main states, as SVG: for the README, and to look at after a change.

python -m tests.tui.gallery DIRECTORY [NAME ...]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from fake_fleet import FakeFleet
from fake_stalls import crashed, stalled, stalled_demo, stalled_group
from feed import FakeHost, Feed, cpu_demo, large, small, three_by_eight, troubled, two_by_four
from textual.pilot import Pilot

from tui.actions import Action
from tui.app import EncampApp
from tui.fleet.hosts import Host
from tui.fleet.store import Link
from tui.screens.going import GoingScreen
from tui.widgets.host_table import HostTable, Row

Act = Callable[[EncampApp, Pilot[None]], Awaitable[None]]


@dataclass(frozen=True)
class Picture:
    """A state of the app: on which hosts, at which size, after which keys or acts."""

    feed: Callable[[], Feed]
    size: tuple[int, int] = (120, 30)
    keys: tuple[str, ...] = ()
    act: Act | None = None
    theme: str = ""
    run: str | None = None


def ranks_64() -> Feed:
    feed = Feed()
    feed.add(FakeHost("big", gpus=0, cores=128))
    feed.run("big", "wide", ranks=64)
    feed.advance(90)
    return feed


def failed() -> Feed:
    feed = small()
    reason = "rank 3 (GPU 3) ended with exit code 1: RuntimeError: CUDA out of memory."
    feed.end_run("vast-a", "gpt-0412", "failed", {3: 1}, reason=reason, exit_code=1)
    return feed


def node_unreachable() -> Feed:
    feed = two_by_four()
    feed.store.hosts["vast-b"].received -= 40
    feed.store.set_link("vast-b", Link.UNREACHABLE, "No route to host.", retry_at=time.monotonic() + 8)
    return feed


def node_failed() -> Feed:
    feed = three_by_eight()
    reason = "rank 11 (GPU 3) ended with exit code 1: RuntimeError: CUDA out of memory."
    feed.end_run("runpod-2", "llama-ft", "failed", {11: 1}, reason=reason, exit_code=1)
    return feed


def leftover() -> Feed:
    feed = two_by_four()
    feed.change_run("vast-a", "gpt-0412", attempt=2, nodes=(), world_size=4)
    feed.advance(20)
    return feed


async def mark_both(app: EncampApp, pilot: Pilot[None]) -> None:
    """Mark a second host in the launch dialog."""
    await pilot.press("tab", "down", "space")
    await pilot.pause(1.0)


async def apart(app: EncampApp, pilot: Pilot[None]) -> None:
    app.fleet.sessions["vast-b"].cut_off = True  # type: ignore[attr-defined]
    await mark_both(app, pilot)


async def restarting(app: EncampApp, pilot: Pilot[None]) -> None:
    action = Action("restarting gpt-0412", ["vast-a", "vast-b"])
    action.progress("vast-a", "stopped, 0 reaped")
    action.progress("vast-b", "stopping")
    app.push_screen(GoingScreen(action))
    await pilot.pause(0.3)


async def checkpoints(app: EncampApp, pilot: Pilot[None]) -> None:
    """Ask for a restart of a run that has saved twice."""
    for name in app.store.hosts:
        app.fleet.sessions[name].checkpoints = [100, 200]  # type: ignore[attr-defined]
    await pilot.press("r")


async def host_key(app: EncampApp, pilot: Pilot[None]) -> None:
    fingerprint = "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDxKUsWZRzbcpOhWZk"
    host = Host("vast-c", "203.0.113.9", 20546, "root")
    task = asyncio.create_task(app.questions.accept_host_key(host, "ssh-ed25519", fingerprint))
    await pilot.pause(0.3)
    TASKS.append(task)


async def key_changed(app: EncampApp, pilot: Pilot[None]) -> None:
    app.screen.query_one(HostTable).select(Row("runpod-9"))
    await pilot.press("K")


async def open_up(app: EncampApp, pilot: Pilot[None]) -> None:
    app.screen.query_one(HostTable).select(Row("vast-a"))
    await pilot.press("space")


TASKS: list[asyncio.Task[bool]] = []
ADD = tuple("ssh -p 20544 root@203.0.113.7 -L 8080:localhost:8080".replace(" ", "␣"))

PICTURES = {
    "fleet": Picture(small, act=open_up),
    "fleet-empty": Picture(Feed, (100, 24)),
    "fleet-trouble": Picture(troubled),
    "fleet-80x24": Picture(troubled, (80, 24)),
    "fleet-200-hosts": Picture(large, (200, 50)),
    "fleet-cpu": Picture(cpu_demo, (80, 24), ("space",)),
    "run": Picture(small, (140, 40), run="gpt-0412"),
    "run-80x24": Picture(cpu_demo, (80, 24), run="gpt-0412"),
    "run-200x50": Picture(small, (200, 50), run="gpt-0412"),
    "run-64-ranks": Picture(ranks_64, (120, 40), run="wide"),
    "run-failed": Picture(failed, run="gpt-0412"),
    "run-light": Picture(small, theme="encamp-light", run="gpt-0412"),
    "group": Picture(two_by_four, (140, 40), run="gpt-0412"),
    "group-80x24": Picture(two_by_four, (80, 24), run="gpt-0412"),
    "group-200x50": Picture(three_by_eight, (200, 50), run="llama-ft"),
    "group-unreachable": Picture(node_unreachable, (120, 30), run="gpt-0412"),
    "group-unreachable-80x24": Picture(node_unreachable, (80, 24), run="gpt-0412"),
    "group-failed": Picture(node_failed, (140, 40), run="llama-ft"),
    "group-failed-80x24": Picture(node_failed, (80, 24), run="llama-ft"),
    "group-leftover": Picture(leftover, (120, 36), run="gpt-0412"),
    "group-fleet": Picture(two_by_four, (120, 24), ("space",)),
    "group-fleet-80x24": Picture(two_by_four, (80, 24), ("space",)),
    "group-runs": Picture(node_unreachable, keys=("R",)),
    "group-logs": Picture(two_by_four, (120, 30), ("5", "l"), run="gpt-0412"),
    "stalled-restart": Picture(stalled_group, (100, 36), act=checkpoints, run="gpt-0412"),
    "stalled-restart-80x24": Picture(stalled_group, (80, 24), act=checkpoints, run="gpt-0412"),
    "group-restart": Picture(node_unreachable, (80, 24), ("r",), run="gpt-0412"),
    "group-restarting": Picture(two_by_four, (80, 24), act=restarting, run="gpt-0412"),
    "group-stop": Picture(node_unreachable, (100, 30), ("S",), run="gpt-0412"),
    "group-launch": Picture(two_by_four, (120, 40), ("n",), act=mark_both),
    "group-launch-80x24": Picture(two_by_four, (80, 24), ("n",), act=mark_both),
    "group-apart": Picture(two_by_four, (100, 36), ("n",), act=apart),
    "stalled": Picture(stalled, (140, 40), run="gpt-0412"),
    "stalled-80x24": Picture(stalled_demo, (80, 24), run="gpt-0412"),
    "stalled-200x50": Picture(stalled_group, (200, 50), run="gpt-0412"),
    "stalled-fleet": Picture(stalled_group, (120, 24)),
    "stalled-runs": Picture(stalled_group, (120, 24), ("R",)),
    "diagnosis": Picture(stalled_group, (140, 40), ("d",), run="gpt-0412"),
    "diagnosis-80x24": Picture(stalled_group, (80, 24), ("d",), run="gpt-0412"),
    "diagnosis-200x50": Picture(stalled_group, (200, 50), ("d",), run="gpt-0412"),
    "diagnosis-failed": Picture(crashed, (140, 40), ("d",), run="gpt-0412"),
    "diagnosis-failed-80x24": Picture(crashed, (80, 24), ("d",), run="gpt-0412"),
    "diagnosis-healthy": Picture(small, (120, 30), ("d",), run="gpt-0412"),
    "timeline": Picture(stalled_group, (120, 30), ("T",), run="gpt-0412"),
    "timeline-80x24": Picture(stalled_group, (80, 24), ("T",), run="gpt-0412"),
    "logs": Picture(small, (120, 30), ("l",), run="gpt-0412"),
    "runs": Picture(troubled, keys=("R",)),
    "launch": Picture(small, (100, 36), ("n",)),
    "strategies": Picture(small, (160, 40), ("n", "tab", "tab", "enter")),
    "strategies-80x24": Picture(small, (80, 24), ("n", "tab", "tab", "enter")),
    "add-host": Picture(Feed, (100, 24), ("a", *ADD)),
    "host-key": Picture(small, (100, 26), act=host_key),
    "key-changed": Picture(troubled, (100, 30), act=key_changed),
    "restart": Picture(small, (100, 30), ("r",), run="gpt-0412"),
    "help": Picture(small, (100, 48), ("question_mark",)),
    "command": Picture(small, (100, 24), ("colon", "r", "e")),
}


async def draw(picture: Picture) -> str:
    """The picture as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ENCAMP_CONFIG_DIR"] = folder
        app = EncampApp(FakeFleet(picture.feed(), Path(folder)), start_run=picture.run)  # type: ignore[arg-type]
        if picture.theme:
            app.theme = picture.theme
        async with app.run_test(size=picture.size) as pilot:
            await pilot.pause()
            await pilot.press(*("space" if key == "␣" else key for key in picture.keys))
            if picture.act is not None:
                await picture.act(app, pilot)
            await pilot.pause(0.6)
            # Some viewers drop spaces at the start of a text unless they are told to keep them.
            return app.export_screenshot().replace("<text ", '<text xml:space="preserve" ')


def main() -> None:
    folder, *names = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        file = Path(folder, f"{name}.svg")
        file.write_text(asyncio.run(draw(PICTURES[name])))
        print(file)


if __name__ == "__main__":
    main()
