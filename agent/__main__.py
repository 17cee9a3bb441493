"""The agent's command line: picks one sub-command and imports only what that one needs.

This file parses under every Python that a host may call `python3`, so that a too old one is told apart by
one readable line and exit code 97. Arguments are taken apart by hand: `connect` is started for every
connection, and argparse alone would double the time it takes.
"""

import sys

USAGE = "usage: agent.pyz connect --nonce HEX [--keep] | daemon | supervise [--adopt] DIR | nvml | version"

TOO_OLD = 97
"""Exit code when the interpreter is older than Python 3.8."""


def main(arguments):
    # type: (list[str]) -> int
    """Run the sub-command in `arguments` and return the exit code."""
    if sys.version_info < (3, 8):  # noqa: UP036 (this is where that is found out)
        found = ".".join(str(part) for part in sys.version_info[:3])
        sys.stderr.write("encamp needs Python 3.8 or newer; " + sys.executable + " is " + found + "\n")
        return TOO_OLD
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "connect":
        from . import connect

        return connect.main(rest)
    if name == "daemon":
        # asyncio loads OpenSSL where it can: 4 MiB of memory that nobody needs behind a unix socket.
        sys.modules["ssl"] = None  # type: ignore[assignment]
        from . import daemon

        return daemon.main(rest)
    if name == "supervise":
        from . import supervise

        return supervise.main(rest)
    if name == "nvml":
        from . import nvml

        return nvml.main(rest)
    if name == "send":
        from . import browse

        return browse.send(rest)
    if name == "build-env":
        from . import env_build

        return env_build.main(rest)
    if name == "receive-code":
        from . import receive

        return receive.main(rest)
    if name == "version":
        from . import instance, version

        sys.stdout.write(version.VERSION + " " + instance.build_id() + "\n")
        return 0
    sys.stderr.write(USAGE + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
