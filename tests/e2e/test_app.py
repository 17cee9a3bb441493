"""The app on a real terminal and a real host: only what the screens' own tests cannot see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.camp import Camp, Terminal
from ssh.sshd import Sshd


def test_an_empty_fleet_says_how_to_begin_and_is_left_with_ctrl_q(terminal: Callable[..., Terminal]) -> None:
    app = terminal(screen=True)
    app.wait("ssh -p")
    app.type("\x11")
    assert app.end()[0] == 0
    assert app.sees("\x1b[?1049l"), "the terminal is as it was before"
    assert not app.sees("Traceback")


@pytest.mark.sshd
def test_a_new_host_key_is_accepted_in_the_app_and_holds_for_commands(
    newcomer: Camp, box: Sshd, terminal: Callable[..., Terminal]
) -> None:
    newcomer.note_down(box)
    app = terminal(screen=True)
    app.wait(box.fingerprint())
    app.type("yes\r")
    app.wait("idle")
    app.type("\x11")
    assert app.end()[0] == 0
    assert newcomer.run("status", "--json").json["hosts"][0]["state"] == "live"
