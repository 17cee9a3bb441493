"""Starts one of the agent's own commands on a host, beside the daemon, for what is much and takes long."""

from __future__ import annotations

import secrets
import shlex

from .errors import HostError, Unreachable
from .patience import within
from .session import Session
from .ssh.client import ExecChannel

START_SECONDS = 20.0
"""How long the command may take to begin."""

NOISE_BYTES = 256 * 1024
"""What a login shell may print before the command begins."""

READ_BYTES = 1024
"""Read at once: the first bytes are few, and of what follows exactly the rest is, which saves copies."""


async def start_command(session: Session, name: str) -> tuple[ExecChannel, bytes]:
    """Start `agent.pyz NAME NONCE HOME`, which first says the nonce in a line; what is said then follows.

    Returns the channel, and what has been read of that. Raises HostError: Unreachable, or when the host runs
    only one command at a time.
    """
    hello = session.view.hello
    if hello is None:
        raise Unreachable(f"{session.name} is not connected.")
    nonce = secrets.token_hex(16)
    agent = f"{hello.home}/agent/{hello.build}.pyz"
    # As the daemon is started: nothing of the user's Python can get in the way, and it begins sooner.
    words = [hello.python, "-I", "-S", agent, name, nonce, hello.home]
    channel = await session.open_bulk(shlex.join(words))
    mark = nonce.encode() + b"\n"
    said = b""
    try:
        while mark not in said:
            data = await within(START_SECONDS, channel.read(READ_BYTES))
            said += data
            if not data or len(said) > NOISE_BYTES:
                raise HostError(
                    f"{session.name} does not start the command {name}.",
                    "Another version of encamp may have been there: connect again.",
                )
    except TimeoutError:
        await channel.close()
        raise Unreachable(f"{session.name} did not start {name} within {START_SECONDS:.0f} s.") from None
    except BaseException:
        await channel.close()
        raise
    return channel, said.partition(mark)[2]
