"""What went wrong with a connection, as one sentence and one next step."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import asyncssh

from ..errors import AuthFailed, HostError, HostKeyChanged, Unreachable
from ..hosts import Host
from ..sanitize import printable
from .keys import DEFAULT_PORT, Trust, fingerprint
from .login import LOGIN_SECONDS, TCP_SECONDS, Login
from .route import Route

TOO_MANY_FAILURES = 2
"""Reason code with which sshd ends a login after MaxAuthTries."""

CHECK_ADDRESS = (
    "Check address and port on the provider's page: rented machines get new ones when they restart."
)


def explain(error: Exception, route: Route, login: Login) -> HostError:
    """The failure of a connection as an error for the user; what we do not know ourselves is quoted."""
    if isinstance(error, asyncssh.PermissionDenied):
        return auth_failed(route, login)
    if isinstance(error, asyncssh.ChannelOpenError):
        return Unreachable(f"The bastion cannot reach {route.endpoint}: {_said(error)}.", CHECK_ADDRESS)
    if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.ProtocolNotSupported):
        return HostError(f"{route.endpoint} and encamp share no SSH algorithm: {_said(error)}.")
    if isinstance(error, asyncssh.DisconnectError) and not isinstance(error, asyncssh.ConnectionLost):
        if error.code == TOO_MANY_FAILURES and login.connected:
            return AuthFailed(
                f"{route.endpoint} ended the login of {route.user} after too many keys: {_said(error)}.",
                "Name the right key with -i KEY -o IdentitiesOnly=yes when adding the host.",
            )
        return _no_ssh(error, route)
    if isinstance(error, OSError | asyncssh.ConnectionLost):
        return _connection(error, route, login)
    return HostError(f"The connection to {route.endpoint} cannot be made: {_said(error)}.")


def timed_out(route: Route, *, connected: bool) -> HostError:
    """The host took too long: to accept the connection, or to get through the login."""
    if connected:
        return Unreachable(
            f"{route.endpoint} takes connections but did not finish the login within {LOGIN_SECONDS:.0f} s.",
            "The machine may be overloaded or still starting, or something else answers on this port.",
        )
    return Unreachable(f"{route.endpoint} did not answer within {TCP_SECONDS:.0f} s.", CHECK_ADDRESS)


def auth_failed(route: Route, login: Login) -> AuthFailed:
    """Say who was refused and what was tried."""
    left_out = (*login.locked_keys, *login.unusable_keys)
    tried = [short_path(path) for path in route.key_files if path not in left_out]
    if os.environ.get("SSH_AUTH_SOCK") and not route.own_keys_only:
        tried.insert(0, "ssh-agent")
    if login.interactive and not login.declined:
        tried.append("a password")
    message = f"{route.endpoint} does not let {route.user} in"
    message += f"; tried {', '.join(tried)}." if tried else ": there is no key to try."
    if login.locked_keys:
        message += f" {', '.join(map(short_path, login.locked_keys))} stayed locked."
    if login.unusable_keys:
        message += f" {', '.join(map(short_path, login.unusable_keys))} is no key that can be used."
    if route.missing:
        message += f" {', '.join(map(short_path, route.missing))} does not exist."
    if login.interactive and login.declined:
        hint = "It would take a password: connect from a terminal or the app to be asked for it."
    elif login.locked_keys:
        hint = f"Unlock the key with: ssh-add {short_path(login.locked_keys[0])}"
    else:
        hint = "Add your public key on the provider's page, or name the right user and key: -l USER -i KEY."
    return AuthFailed(message, hint)


def key_changed(
    name: str | None, route: Route, trust: Trust, shown: asyncssh.SSHKey, own: Path
) -> HostKeyChanged:
    """Another key than the accepted one. `name` is the host's in the inventory; bastions have none."""
    known = " or ".join(f"{key.get_algorithm()} {fingerprint(key)}" for key in trust.host_keys)
    now = f"{shown.get_algorithm()} {fingerprint(shown)}"
    return HostKeyChanged(
        f"{route.endpoint} shows another host key than before: it was {known}, now it is {now}.",
        "If the machine was set up anew, or its address went to a new one, say so with: "
        + _forget_command(name, route, trust, own)
        + ". If not, somebody may be in between: do not connect.",
    )


def key_refused(host: Host, route: Route, reason: str) -> HostKeyChanged:
    """A key or certificate that the known_hosts files rule out."""
    what = (
        "is marked as revoked in known_hosts"
        if "revoked" in reason
        else f"cannot be used: {printable(reason)}"
    )
    return HostKeyChanged(
        f"The host key of {host.name} ({route.endpoint}) {what}.",
        "Ask whoever runs the machine for its right key.",
    )


def _forget_command(name: str | None, route: Route, trust: Trust, own: Path) -> str:
    """What to type so that the old key is no longer believed."""
    if name and trust.source == own:
        return f"encamp hosts forget-key {name}"
    default = Path("~/.ssh/known_hosts").expanduser()
    file = "" if trust.source == default else f" -f {trust.source}"
    return f"ssh-keygen -R '{route.key_name}'{file}"


def short_path(path: str | Path) -> str:
    """The path with the home directory as `~`."""
    home = str(Path.home())
    text = str(path)
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text


def _connection(error: Exception, route: Route, login: Login) -> HostError:
    if isinstance(error, socket.gaierror):
        return Unreachable(
            f"The name {route.hostname} cannot be resolved: {error.strerror or error}.",
            "Check the name and this machine's network.",
        )
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(f"{route.endpoint} refuses connections.", CHECK_ADDRESS)
    if isinstance(error, TimeoutError):
        return timed_out(route, connected=False)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
        return Unreachable(f"There is no route to {route.endpoint}.", "Check this machine's network or VPN.")
    if login.connected or isinstance(error, asyncssh.ConnectionLost | ConnectionResetError | BrokenPipeError):
        return LostBeforeLogin(
            f"{route.endpoint} closed the connection before the login.",
            "It is busy or restarting, or turns this machine away.",
        )
    if route.proxied:
        return Unreachable(
            f"The ProxyCommand for {route.endpoint} failed: {_said(error)}.", "Check ~/.ssh/config."
        )
    return Unreachable(f"{route.endpoint} cannot be reached: {_said(error)}.", CHECK_ADDRESS)


class LostBeforeLogin(Unreachable):
    """The host hung up before we were in: sshd does so when too many log in at once."""


def _no_ssh(error: asyncssh.DisconnectError, route: Route) -> HostError:
    default = "" if route.port == DEFAULT_PORT else " Is the port right?"
    return HostError(
        f"{route.endpoint} does not speak SSH as expected: {_said(error)}.{default}", CHECK_ADDRESS
    )


def _said(error: Exception) -> str:
    text = printable(str(error)[:300]).strip().rstrip(".")
    return text or type(error).__name__
