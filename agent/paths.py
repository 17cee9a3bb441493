"""Where everything lies under `$ENCAMP_HOME` on the host: the one owner of these names.

Every function takes the absolute path of ENCAMP_HOME and returns an absolute path; nothing is created here.
Only `os` is imported: the relay and the supervisors pay for every import.
"""

from __future__ import annotations

import os


def home() -> str:
    """The absolute path of ENCAMP_HOME: the variable when it is set and not empty, else `~/.encamp`."""
    return os.path.abspath(os.path.expanduser(os.environ.get("ENCAMP_HOME") or "~/.encamp"))


def host_file(home: str) -> str:
    """`host.json`: the random identity of this ENCAMP_HOME."""
    return os.path.join(home, "host.json")


def code_dir(home: str, sha256: str = "") -> str:
    """The folder into which the archive `sha256` is unpacked; without one, the folder of all of them."""
    return os.path.join(home, "code", sha256) if sha256 else os.path.join(home, "code")


def interpreters_file(home: str) -> str:
    """`interpreters.json`: what the last probe found out about the Pythons of this host."""
    return os.path.join(home, "interpreters.json")


def env_dir(home: str, name: str = "") -> str:
    """The folder of the virtual environment `name`; without one, the folder of all of them."""
    return os.path.join(home, "envs", name) if name else os.path.join(home, "envs")


def env_log(home: str, name: str) -> str:
    """What the build of the virtual environment `name` said; locked while it goes on."""
    return os.path.join(home, "envs", f"{name}.log")


def env_failure(home: str, name: str) -> str:
    """Why the last build of the virtual environment `name` failed; there is none when it did not."""
    return os.path.join(home, "envs", f"{name}.failed")


def runs_dir(home: str) -> str:
    """The folder of all runs."""
    return os.path.join(home, "runs")


def run_dir(home: str, run: str) -> str:
    """The folder of one run."""
    return os.path.join(home, "runs", run)


def claims_file(home: str) -> str:
    """`claims.lock`: locked by whoever takes a run's name, an attempt's number or GPUs."""
    return os.path.join(home, "claims.lock")


def staged_dir(home: str, run: str, purpose: str) -> str:
    """A run's folder on its way into `runs/` or out of it; its name is no run's, and ends with our pid."""
    return os.path.join(home, "runs", f".{purpose}-{run}-{os.getpid()}")


def run_code_dir(home: str, run: str) -> str:
    """The run's own copy of the project that it was launched with."""
    return os.path.join(home, "runs", run, "code")


def run_file(home: str, run: str) -> str:
    """`run.json`: what stays the same from attempt to attempt."""
    return os.path.join(home, "runs", run, "run.json")


def checkpoints_dir(home: str, run: str) -> str:
    """The trainer's default checkpoint folder; attempts share it, so a restart resumes."""
    return os.path.join(home, "runs", run, "checkpoints")


def attempts_dir(home: str, run: str) -> str:
    """The folder of all attempts of a run."""
    return os.path.join(home, "runs", run, "attempts")


def attempt_dir(home: str, run: str, attempt: int) -> str:
    """The folder of one attempt."""
    return os.path.join(home, "runs", run, "attempts", str(attempt))
