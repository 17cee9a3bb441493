"""What people paste to name a host: a provider's ssh command, an address, a URL, an alias of ~/.ssh/config.

Only the text is understood here; nothing is looked up. What the text leaves open (`None`) is for
~/.ssh/config to say, and for SSH's defaults after that.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from .errors import UsageError

MAX_TEXT = 4096
"""Characters of a pasted target."""

EXAMPLE = 'for example "ssh -p 20544 root@203.0.113.7", "root@203.0.113.7:20544" or an alias of ~/.ssh/config'

_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}\Z")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
_USER = re.compile(r"[^\s\x00-\x1f\x7f'\"`$;&<>|(){}-][^\s\x00-\x1f\x7f'\"`$;&<>|(){}]{0,127}\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")

_HARMLESS_FLAGS = frozenset("46AaCfgKkMNnqTtvXxYy")
_HARMLESS_WITH_VALUE = frozenset("cDEeLmRS")
_UNDERSTOOD_WITH_VALUE = frozenset("iJlop")
_OTHER_WITH_VALUE = frozenset("BbFIOPQWw")

_HARMLESS_OPTIONS = frozenset(
    (
        "addkeystoagent", "batchmode", "checkhostip", "ciphers", "clearallforwardings", "compression",
        "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist",
        "dynamicforward", "escapechar", "exitonforwardfailure", "forwardagent", "forwardx11",
        "forwardx11trusted", "gatewayports", "globalknownhostsfile", "hashknownhosts", "ipqos",
        "localforward", "loglevel", "macs", "numberofpasswordprompts", "permitlocalcommand",
        "remoteforward", "requesttty", "sendenv", "serveralivecountmax", "serveraliveinterval",
        "stricthostkeychecking", "tcpkeepalive", "updatehostkeys", "userknownhostsfile", "verifyhostkeydns",
        "visualhostkey",
    )
)  # fmt: skip
"""Options that change nothing here, or whose job encamp does itself and never less strictly."""


@dataclass(frozen=True, slots=True)
class ParsedTarget:
    """What a text said about a host. `ignored` are the options that it had and that do not matter here."""

    hostname: str
    user: str | None = None
    port: int | None = None
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    proxy_jump: str | None = None
    ignored: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    hostname: str | None = None
    user: str | None = None
    port: int | None = None
    identity_files: list[str] = field(default_factory=list)
    identities_only: bool = False
    proxy_jump: str | None = None
    ignored: list[str] = field(default_factory=list)


def parse_ssh_command(text: str) -> ParsedTarget:
    """Understand `text` as ssh would: the first value of an option counts, options may follow the host.

    Raises UsageError that names what is not understood.
    """
    text = text.replace("\\\n", " ").strip()
    if text.startswith("$ "):
        text = text[2:]
    if not text:
        raise UsageError("No host was given.", f"Paste the ssh command of your provider, {EXAMPLE}.")
    if len(text) > MAX_TEXT:
        raise UsageError(f"This is {len(text)} characters long: no ssh command.", f"Give a host, {EXAMPLE}.")
    if _CONTROL.search(text):
        raise UsageError(
            "The host contains control characters.", f"Type it instead of pasting it, {EXAMPLE}."
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"The quotes in this ssh command do not match: {error}.") from error
    if words and words[0].rsplit("/", 1)[-1] == "ssh":
        del words[0]
    draft = _Draft()
    rest = iter(words)
    for word in rest:
        if word == "--":
            continue
        if word.startswith("-") and len(word) > 1:
            _take_options(draft, word, rest)
        elif draft.hostname is None:
            _take_destination(draft, word)
        else:
            raise UsageError(
                f"The command has {word!r} after the host: encamp runs its own commands there.",
                "Give only the part of the ssh command that names the host.",
            )
    if draft.hostname is None:
        raise UsageError("This ssh command names no host.", f"Give one, {EXAMPLE}.")
    return ParsedTarget(
        draft.hostname,
        draft.user,
        draft.port,
        tuple(dict.fromkeys(draft.identity_files)),
        draft.identities_only,
        draft.proxy_jump,
        tuple(draft.ignored),
    )


def format_address(hostname: str, port: int | None = None, user: str | None = None) -> str:
    """`user@host:port` as people write it: an IPv6 address gets brackets where a port follows."""
    if port is not None:
        hostname = f"[{hostname}]:{port}" if ":" in hostname else f"{hostname}:{port}"
    return f"{user}@{hostname}" if user else hostname


def check_hostname(name: str) -> str:
    """Return `name` if it is a host name, alias or address. Raises UsageError."""
    if ":" in name:
        address, _, zone = name.partition("%")
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            raise UsageError(f"{name!r} is not an IPv6 address.", f"Give a host, {EXAMPLE}.") from None
        if zone and not _ZONE.match(zone):
            raise UsageError(f"{name!r} has an unusable zone after the '%'.")
        return name
    if not _HOST_NAME.match(name):
        raise UsageError(f"{name!r} is not a host name.", f"Give a host, {EXAMPLE}.")
    return name


def check_user(user: str) -> str:
    """Return `user` if it can be a user's name. Raises UsageError."""
    if not _USER.match(user):
        raise UsageError(f"{user!r} is not a user name.")
    return user


def check_port(value: str) -> int:
    """The port in `value`. Raises UsageError."""
    if not (value.isascii() and value.isdigit() and len(value) <= 5 and 1 <= int(value) <= 65535):
        raise UsageError(f"{value!r} is not a port.", "A port is a number from 1 to 65535.")
    return int(value)


def check_jump(value: str) -> str:
    """Return `value` if it is a list of jump hosts as `-J` takes it, or `none`. Raises UsageError."""
    if value != "none":
        for hop in split_jump(value):
            split_destination(hop)
    return value


def split_jump(value: str) -> list[str]:
    """The hops of a `-J` value, the first one to connect to first."""
    return [hop.strip() for hop in value.split(",")]


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]`, `[user@][v6][:port]`, bare IPv6 or an ssh:// URL.

    Raises UsageError.
    """
    if text.lower().startswith("ssh://"):
        authority = text[6:]
        authority, _, path = authority.partition("/")
        if path:
            raise UsageError(
                f"The address {text!r} has a path after the host.", "An ssh:// address has none."
            )
        user, host, port = split_destination(authority)
        return user and check_user(unquote(user).partition(";")[0]), host, port
    name, at, rest = text.rpartition("@")
    user = check_user(name) if at else None
    bracketed = re.match(r"\[([^\[\]]*)\](?::(.*))?\Z", rest, re.DOTALL)
    number: str | None = None
    if bracketed:
        rest, number = bracketed.groups()
    elif rest.count(":") == 1:
        rest, number = rest.split(":")
    return user, check_hostname(rest), None if number is None else check_port(number)


def _take_destination(draft: _Draft, word: str) -> None:
    user, draft.hostname, port = split_destination(word)
    draft.user = draft.user or user
    draft.port = draft.port or port


def _take_options(draft: _Draft, word: str, rest: Iterator[str]) -> None:
    """Take one word of short options: flags in a bunch, the last of them perhaps with its value glued on."""
    for position, letter in enumerate(word[1:], start=1):
        option = "-" + letter
        if letter in _HARMLESS_FLAGS:
            draft.ignored.append(option)
            continue
        if letter in _OTHER_WITH_VALUE or letter not in _HARMLESS_WITH_VALUE | _UNDERSTOOD_WITH_VALUE:
            shown = word if word.startswith("--") else option
            raise UsageError(
                f"The ssh option {shown} is not supported.",
                "Leave it out, or put it under a Host entry of ~/.ssh/config and give that alias.",
            )
        value = word[position + 1 :] or next(rest, None)
        if value is None:
            raise UsageError(f"The ssh option {option} needs a value.")
        if letter in _HARMLESS_WITH_VALUE:
            draft.ignored.append(f"{option} {value}")
        elif letter == "o":
            _take_long_option(draft, value)
        else:
            names = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump"}
            _set_option(draft, names[letter], value)
        return


def _take_long_option(draft: _Draft, text: str) -> None:
    """Take the value of `-o`: `Name=value`, `Name value` or `Name = value`."""
    match = re.match(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*\S)\s*\Z", text, re.DOTALL)
    if not match:
        raise UsageError(f"The ssh option -o {text!r} has no value.", "It is written -o Name=value.")
    name, value = match.groups()
    if name.lower() in _HARMLESS_OPTIONS:
        draft.ignored.append(f"-o {name}={value}")
    elif not _set_option(draft, name.lower(), value.strip('"')):
        raise UsageError(
            f"The ssh option -o {name} is not supported.",
            "Leave it out, or put it under a Host entry of ~/.ssh/config and give that alias.",
        )


def _set_option(draft: _Draft, name: str, value: str) -> bool:
    """Set one option that matters, unless an earlier one did; False when `name` is none of them."""
    if name == "port":
        draft.port = draft.port or check_port(value)
    elif name == "user":
        draft.user = draft.user or check_user(value)
    elif name == "identityfile":
        draft.identity_files.append(value)
    elif name == "proxyjump":
        draft.proxy_jump = draft.proxy_jump or check_jump(value)
    elif name == "identitiesonly":
        if value.lower() not in ("yes", "no", "true", "false"):
            raise UsageError(f"IdentitiesOnly is {value!r}.", "It is yes or no.")
        draft.identities_only = draft.identities_only or value.lower() in ("yes", "true")
    else:
        return False
    return True
