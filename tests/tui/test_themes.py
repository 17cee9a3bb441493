"""Every theme, no colour at all, and sizes: the screen stays legible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from driving import driving
from feed import small, troubled
from rich.color_triplet import ColorTriplet

from tui.screens.restart import RestartScreen
from tui.theme import DARK, LIGHT
from tui.widgets.host_table import HostTable

STATE_TONES = ("trouble", "degraded", "good", "quiet", "starting", "unknown", "head", "key", "strong", "")


def luminance(color: ColorTriplet) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


async def test_every_theme_renders_every_screen_legibly(tmp_path: Path) -> None:
    """All built-in themes and ours: nothing raises, and no tone drowns in its background."""
    async with driving(troubled(), tmp_path, size=(120, 30)) as driver:
        app = driver.app
        faint: list[str] = []
        for name in sorted(app.available_themes):
            app.theme = name
            await driver.pilot.pause()
            table = app.screen.query_one(HostTable)
            for tone in STATE_TONES:
                for over in ("", "tone--cursor"):
                    style = table.tone_style(tone, over)
                    assert style.color is not None
                    if style.color.triplet is None or style.bgcolor is None or style.bgcolor.triplet is None:
                        continue  # the terminal's own colours: it chose them to be legible
                    ratio = contrast(style.color.triplet, style.bgcolor.triplet)
                    if ratio < (2.7 if over else 3.0):
                        faint.append(f"{name}: {tone or 'plain'} {over} {ratio:.1f}")
            assert "unreachable" in driver.text
        assert not faint, "\n".join(faint)


async def test_every_theme_draws_a_run_and_a_dialog(tmp_path: Path) -> None:
    async with driving(small(), tmp_path, size=(120, 40), start_run="gpt-0412") as driver:
        await driver.press("r")
        assert isinstance(driver.app.screen, RestartScreen)
        for name in sorted(driver.app.available_themes):
            driver.app.theme = name
            await driver.pilot.pause()
            for word in ("type restart", "tokens/s", "● running", "step 599 loss"):
                assert word in driver.text, name


async def test_our_own_themes_are_the_default_and_there_to_choose(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        assert driver.app.theme == DARK.name
        await driver.command(f"theme {LIGHT.name}")
        assert driver.app.theme == LIGHT.name
        assert not driver.app.current_theme.dark


async def test_a_change_of_theme_reaches_rows_that_are_drawn_already(tmp_path: Path) -> None:
    async with driving(small(), tmp_path) as driver:
        table = driver.app.screen.query_one(HostTable)
        before = table.tone_style("good")
        driver.app.theme = "textual-light"
        await driver.pilot.pause()
        assert table.tone_style("good") != before


@pytest.mark.parametrize("theme", ["encamp-dark", "ansi-dark"])
async def test_without_colour_states_and_cursor_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theme: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with driving(troubled(), tmp_path, theme=theme) as driver:
        assert driver.app.no_color
        for word in ("✕", "unreachable", "◐", "reconnecting", "● vast-a", "live", "◌", "connecting", "○"):
            assert word in driver.text
        assert "▌✕" in driver.text.splitlines()[3]
        strips = driver.app.screen._compositor.render_strips()
        styles = {segment.style for strip in strips for segment in strip if segment.style is not None}
        for style in styles:
            for color in (style.color, style.bgcolor):
                if color is not None and color.triplet is not None:
                    assert len(set(color.triplet)) == 1, f"{style} is coloured"


def test_the_frame_rate_is_ours_unless_the_user_says_otherwise() -> None:
    code = "import tui.app, textual.constants; print(textual.constants.MAX_FPS)"
    for given, expected in ({}, "20"), ({"TEXTUAL_FPS": "7"}, "7"):
        environment = {name: value for name, value in os.environ.items() if name != "TEXTUAL_FPS"} | given
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        assert result.stdout.strip() == expected
