"""What can go wrong with a host or a run, as exceptions that know what to say and what to do next."""

from __future__ import annotations


class EncampError(Exception):
    """Base of everything the user is meant to read. `hint` says what to do next; it may be empty."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EncampError):
    """What the user wrote cannot be understood or names something that does not exist."""

    exit_code = 2


class HostError(EncampError):
    """A host cannot be used at the moment. `retryable` says whether trying again by itself makes sense."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "", *, retryable: bool = False) -> None:
        super().__init__(message, hint)
        self.retryable = retryable


class Unreachable(HostError):
    """No connection: refused, timed out, no route, lost."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, retryable=True)


class HostKeyUnknown(HostError):
    """The host has never been seen and nobody was there to accept its key."""


class HostKeyChanged(HostError):
    """The host shows another key than the one that was accepted."""


class AuthFailed(HostError):
    """The host does not let us in."""


class HostUnfit(HostError):
    """We are in, but the agent cannot run there: no Python, nowhere to write, no exec."""


class RequestRefused(EncampError):
    """The agent answered a request with a failure. `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code
