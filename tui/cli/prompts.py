"""Questions of a connection, asked on the terminal: is this key right, what is the password.

Reading goes through the event loop instead of `input` and `getpass`: those would block every other connection
while the user looks up a password, and ctrl-C could not end the wait.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios

from ..fleet.hosts import Host
from ..fleet.project import ProjectTooLarge
from ..fleet.prompts import NoPrompts, Prompts
from .output import clean


def prompts(*, accept_new_host_key: bool) -> Prompts:
    """Who answers for this process: the user when there is a terminal, else nobody."""
    if is_terminal():
        return TerminalPrompts(accept_new_host_key=accept_new_host_key)
    return NoPrompts(accept_new_host_key=accept_new_host_key)


async def agree_to_size(error: ProjectTooLarge) -> bool:
    """Whether the user wants to send a large project all the same; without a terminal nobody does."""
    if not is_terminal():
        return False
    sys.stderr.write(f"{clean(error.message)}\n")
    return (await _ask("Send it all the same? (yes/no) ", echo=True)).strip().lower() == "yes"


async def confirmed(question: str, answer: str) -> bool:
    """Whether the user types the whole `answer` to a question on the terminal that there is.

    Where that is `yes`, nothing and no are a no, and after anything else, such as `y`, it is asked again.
    """
    while True:
        typed = (await _ask(clean(question), echo=True)).strip().lower()
        if answer != "yes" or typed in ("yes", "no", "n", ""):
            return typed == answer
        sys.stderr.write("That was not understood: please type yes in full, or no. ")


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class TerminalPrompts:
    """Asks on stderr and reads from stdin, one question at a time."""

    def __init__(self, *, accept_new_host_key: bool = False) -> None:
        self.accept_new_host_key = accept_new_host_key
        self._turn = asyncio.Lock()

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        """Show the fingerprint and take nothing but a whole `yes` for yes."""
        if self.accept_new_host_key:
            return True
        async with self._turn:
            sys.stderr.write(
                f"{clean(host.name)} ({clean(host.address)}) has never been seen before. Its key:\n"
                f"  {clean(key_type)} {clean(fingerprint)}\n"
                "Compare it with what your provider shows, if it does. "
            )
            while True:
                answer = (await _ask("Accept it and go on? (yes/no) ", echo=True)).strip().lower()
                if answer in ("yes", "no", ""):
                    return answer == "yes"
                sys.stderr.write("Please type yes or no. ")

    async def password(self, host: Host, prompt: str) -> str | None:
        """Ask in the host's own words, made harmless; an empty answer gives up."""
        async with self._turn:
            question = clean(prompt).strip().rstrip(":") or "password"
            return await _ask(f"{clean(host.name)}: {question}: ", echo=False) or None

    async def passphrase(self, host: Host, path: str) -> str | None:
        """Ask for the passphrase of a private key; an empty answer goes on without the key."""
        async with self._turn:
            return await _ask(f"passphrase of {path} for {clean(host.name)}: ", echo=False) or None


async def _ask(question: str, *, echo: bool) -> str:
    """One line from the terminal, empty at its end. The terminal's settings are always restored."""
    terminal = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(terminal, 4096))

    sys.stderr.write(question)
    sys.stderr.flush()
    before = termios.tcgetattr(terminal)
    if not echo:
        quiet = termios.tcgetattr(terminal)
        quiet[3] &= ~termios.ECHO
        # What was typed before the question is not an answer to it: for a secret it is thrown away.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, quiet)
    loop.add_reader(terminal, read)
    try:
        answer = await line
    finally:
        loop.remove_reader(terminal)
        if not echo:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
            sys.stderr.write("\n")
    return answer.decode(errors="surrogateescape").rstrip("\r\n")
