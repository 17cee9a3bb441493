"""Keeps Python's garbage collector from stopping the screen.

An app of textual's is a heap of some hundred thousand objects that live until it ends: styles, style sheets,
classes, code. A full collection walks all of them, which takes 40 to 50 ms: as long as a frame may take. Put
aside once the app stands, they are not walked again; what comes later is collected as always.
"""

from __future__ import annotations

import gc


def settle() -> None:
    """Put aside all that lives now. To be called once, when the first screen stands."""
    gc.collect()
    gc.freeze()
