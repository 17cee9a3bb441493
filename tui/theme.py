"""Colours: the tones in which states are shown, and the two themes encamp brings along.

A tone is the name of a component class (`tone--trouble`), so every theme, the ANSI ones included, gives it
its own colour through `encamp.tcss`; widgets never name a colour.
"""

from __future__ import annotations

from textual.theme import Theme

TONES = (
    "trouble", "degraded", "good", "quiet", "starting", "unknown",
    "head", "strong", "key", "util", "loss", "rate", "mark", "cursor", "cursor-blurred",
)  # fmt: skip
"""Tones of states (as in `tui.formatting`); heads of columns, emphasis, keys; the hue of each metric; the
cursor's mark, and its row with and without the focus."""

TONE_CLASSES = {f"tone--{tone}" for tone in TONES}

DARK = Theme(
    name="encamp-dark",
    primary="#6aa9e9",
    secondary="#56b6c2",
    accent="#c792ea",
    success="#7cc57c",
    warning="#e5b454",
    error="#f2706a",
    foreground="#d3d9e0",
    background="#101419",
    surface="#161b22",
    panel="#1e252e",
    dark=True,
    variables={
        "footer-background": "#101419",
        "footer-item-background": "#101419",
        "footer-description-background": "#101419",
        "footer-key-background": "#101419",
        "footer-description-foreground": "#8d97a3",
        "footer-key-foreground": "#6aa9e9",
    },
)

LIGHT = Theme(
    name="encamp-light",
    primary="#0a5fb4",
    secondary="#00707c",
    accent="#8a2fb5",
    success="#1f7a33",
    warning="#9a6200",
    error="#b3261e",
    foreground="#1d2126",
    background="#fbfbf9",
    surface="#f2f2ef",
    panel="#e6e6e2",
    dark=False,
    variables={
        "footer-background": "#fbfbf9",
        "footer-item-background": "#fbfbf9",
        "footer-description-background": "#fbfbf9",
        "footer-key-background": "#fbfbf9",
        "footer-description-foreground": "#5c636b",
        "footer-key-foreground": "#0a5fb4",
    },
)

DEFAULT = DARK.name
