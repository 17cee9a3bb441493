"""What runs on a host to find or install the agent: a script for `sh`, and a receiver in Python.

The script is given to the login shell, whichever that is, as a single quoted word, so it has no quote, no
backslash, no exclamation mark and no line break in it: bash, dash, zsh, fish and csh pass it on unchanged.
The nonce is not in it in one piece: nothing that echoes the command line can be taken for the answer.
"""

from __future__ import annotations

import re

from agent.bundle import Bundle

from .errors import UsageError
from .hosts import HOST_PATH, Host

TOO_OLD = 97
"""Exit code of the agent under a Python before 3.8."""

PYTHONS = (
    "python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8",
    "/usr/bin/python3", "/usr/local/bin/python3", "/venv/main/bin/python", "/opt/conda/bin/python3",
    "/opt/miniconda3/bin/python3", "$HOME/miniconda3/bin/python3", "$HOME/.venv/bin/python3",
)  # fmt: skip
"""Interpreters that may run the agent, in the order in which they are tried."""

PYTHON_GLOBS = ("/venv/*/bin/python3", "/opt/*/bin/python3", '"$HOME"/.pyenv/versions/*/bin/python3')

_SCRIPT = """\
a=@HALF@; n=${a}@OTHER@; s=@SHA@;
if [ -n "@HOME@" ]; then set -- "@HOME@";
elif [ -n "$ENCAMP_HOME" ]; then set -- "$ENCAMP_HOME";
else set -- "$HOME/.encamp" /workspace/.encamp "/var/tmp/encamp-$(id -u)"; fi;
h=; for d do if [ -f "$d/host.json" ] && [ -O "$d" ]; then h=$d; break; fi; done;
if [ -z "@FRESH@" ] && [ -n "$h" ] && [ -f "$h/agent/$s.pyz" ]; then
ENCAMP_HOME=$h; export ENCAMP_HOME;
for p in @PYTHONS@; do
command -v "$p" >/dev/null 2>&1 || continue;
"$p" -I -S "$h/agent/$s.pyz" connect --nonce $n @KEEP@; r=$?;
case $r in 97|126|127) ;; *) exit $r;; esac;
done; fi;
o=;
for p in @PYTHONS@; do
command -v "$p" >/dev/null 2>&1 || continue;
"$p" -I -S -c "@PROBE@" </dev/null >/dev/null 2>&1;
r=$?; if [ $r = 0 ]; then echo "$n:need";
exec "$p" -I -S -c "@READ@" $n "$h" "$@";
fi; o="$o $p=$r"; done;
echo "$n:none$o"; exit 96
"""
"""The home is the first folder that an agent has used before; only where there is none, one is chosen. Each
Python may be too old, or broken: the agent says so when it is here, otherwise each is tried out first."""

_PROBE = f"import sys,json,hashlib,zlib,fcntl,select;sys.exit({TOO_OLD}*(sys.version_info<(3,8)))"

_READ = "import os;exec(bytes().join(iter(lambda:os.read(0,1)or bytes([10]),bytes([10]))))"
"""Runs the first line of stdin, read byte by byte, so that what follows it stays in the pipe. No literals."""

_RECEIVER = """\
import hashlib, json, os, sys
nonce, chosen, *homes = sys.argv[1:]
data = b""
while len(data) < {size}:
    chunk = os.read(0, min(65536, {size} - len(data)))
    if not chunk:
        sys.exit(0)
    data += chunk
def fail(**fields):
    os.write(1, (nonce + ":fail " + json.dumps(fields) + "\\n").encode())
    sys.exit(96)
if hashlib.sha256(data).hexdigest() != {sha256!r}:
    fail(damaged=True)
errors = []
for home in [chosen] if chosen else homes:
    path = os.path.join(home, "agent", {sha256!r} + ".pyz")
    part = "%s.%d.part" % (path, os.getpid())
    try:
        if not os.path.isdir(home):
            (os.makedirs if len(homes) == 1 else os.mkdir)(home, 0o700)
        if os.stat(home).st_uid != os.geteuid():
            errors.append([home, "EPERM", "it belongs to another user"])
            continue
        os.chmod(home, 0o700)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.unlink(part)
    except OSError as error:
        import errno
        errors.append([home, errno.errorcode.get(error.errno, ""), error.strerror or str(error)])
        continue
    os.environ["ENCAMP_HOME"] = home
    os.execv(sys.executable, [sys.executable, "-I", "-S", path, "connect", "--nonce", nonce] + {options!r})
fail(errors=errors)
"""
"""Takes the agent whole before it touches the disk: a connection cut in between leaves nothing behind."""


def shell_command(host: Host, sha256: str, nonce: str, *, keep: bool = False, fresh: bool = False) -> str:
    """What the login shell is told to run."""
    if host.python:
        pythons = f'"{_on_host(host.python)}"'
    else:
        pythons = " ".join((*(f'"{path}"' for path in PYTHONS), *PYTHON_GLOBS))
    half = len(nonce) // 2
    values = {
        "HALF": nonce[:half],
        "OTHER": nonce[half:],
        "SHA": sha256,
        "HOME": _on_host(host.home) if host.home else "",
        "FRESH": "1" if fresh else "",
        "PYTHONS": pythons,
        "KEEP": "--keep" if keep else "",
        "PROBE": _PROBE,
        "READ": _READ,
    }
    script = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], _SCRIPT.strip().replace("\n", " "))
    return f"exec sh -c '{script}'"


def _on_host(path: str) -> str:
    """The path as it stands in the script, between double quotes."""
    if not re.fullmatch(HOST_PATH, path):
        raise UsageError(
            f"{path!r} cannot be used as a path on a host.", "Use letters, digits and ./_-+=:@%,"
        )
    return "$HOME" + path[1:] if path.startswith("~/") else path


def receiver(bundle: Bundle, *, keep: bool) -> bytes:
    """The first line for the stdin of a script that said `need`; the agent's bytes follow it."""
    options = ["--keep"] if keep else []
    source = _RECEIVER.format(size=len(bundle.data), sha256=bundle.sha256, options=options)
    return f"exec({source!r})\n".encode("ascii")
