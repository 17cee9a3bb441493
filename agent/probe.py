"""Which Pythons this host has, and what each can train with: torch by really importing it.

The interpreter that runs the agent and the one that trains are different things. Importing torch takes
seconds, so answers are kept in `interpreters.json` and hold as long as the files they rest on do not change:
torch's own version file, and the folders in which packages are looked for. The other packages are looked for
and not imported: that would take as long again for each. Everything here blocks on child processes and on the
disk: call it in a thread.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

from . import environment, files, paths
from .errors import RunError

IMPORT_SECONDS = 120.0
"""How long one interpreter may take to import torch: a cold network disk."""

MAX_CANDIDATES = 64
MAX_ERROR = 300
MAX_VERSION = 60

SET_PYTHON = (
    'set python = "/path/to/python" in the profile\'s [run] table, or use --set run.python=/path/to/python'
)

MARKER = "encamp.json"
"""Renamed into the folder of an environment of ours when everything in it is there, see `envs`."""

MARK = "encamp-probe:"
"""Begins the line with the answer: what runs at the start of an interpreter may print as well."""

PACKAGES = {
    "deepspeed": ("deepspeed",),
    "horovod": ("horovod",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"),
    "safetensors": ("safetensors",),
}
"""What is looked for besides torch, by the name for importing it: the distributions that may bring it."""

CHECK = f"""
import json, os, sys
def version(names):
    from importlib.metadata import PackageNotFoundError, version
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "unknown"
def main():
    answer = {{"version": "%d.%d.%d" % sys.version_info[:3], "torch": None, "cuda": None, "packages": {{}}}}
    watched = [entry for entry in sys.path if os.path.isdir(entry)]
    try:
        from importlib.util import find_spec
        for name, names in {PACKAGES!r}.items():
            spec = find_spec(name)
            if spec is not None and spec.origin is not None:
                answer["packages"][name] = version(names)
        spec = find_spec("torch")
        if spec is not None:
            import torch
            answer["torch"] = str(torch.__version__)
            answer["cuda"] = getattr(torch.version, "cuda", None)
            watched.append(torch.version.__file__)
            answer["packages"]["torch"] = answer["torch"]
    except BaseException as error:
        answer["error"] = "%s: %s" % (type(error).__name__, error)
    answer["watched"] = watched
    return answer
answer = main()
sys.stdout.flush()
os.write(1, ("\\n{MARK}" + json.dumps(answer) + "\\n").encode())
os._exit(0)
"""


class Interpreter(NamedTuple):
    """One Python of this host."""

    path: str
    """How it is started."""
    version: str
    """As in 3.11.7; empty when it could not be asked."""
    torch: Optional[str]
    """Version of torch, None when it cannot be imported."""
    cuda: Optional[str]
    """Version of CUDA that torch was built for."""
    error: str = ""
    """Why it is of no use, one sentence; empty when it simply has no torch, or has one."""
    packages: Dict[str, str] = {}  # noqa: RUF012 (a tuple's default, which nobody changes)
    """Name for importing -> version, of torch and those of `PACKAGES` that it has."""

    @property
    def works(self) -> bool:
        """Whether it can be started, be torch in it broken."""
        return bool(self.version)

    def lacks(self, needs: Sequence[str]) -> List[str]:
        """Which of these packages it does not have. The version of one that is there does not matter."""
        has = {name for name in self.packages if name != "torch"} | ({"torch"} if self.torch else set())
        return [name for name in needs if name not in has]


def interpreters(home: str, cwd: str = "") -> List[Interpreter]:
    """Every Python found on this host, most likely ones first. Each is asked at most once."""
    return [inspect(home, path) for path in candidates(cwd, home)]


def resolve(
    home: str,
    python: str,
    cwd: str,
    needs: Sequence[str] = ("torch",),
    wants: Sequence[str] = (),
    what_for: str = "",
) -> Interpreter:
    """The interpreter that a profile means by `python`: "auto", a path, or a command's name.

    "auto" is the first that has the packages `needs` and, if there is one, those of `wants` as well. Relative
    paths and virtual environments are looked for in `cwd`. Raises RunError `no-python`, or `no-package` when
    what is missing is not torch alone; the message then says that `what_for` needs it.
    """
    if python != "auto":
        return _named(home, python, cwd, needs, what_for)
    tried, second = [], None
    has: Set[str] = set()
    for path in candidates(cwd, home):
        found = inspect(home, path)
        lacking = found.lacks(needs)
        has.update(set(needs).difference(lacking))
        stale = _stale(home, found)
        if stale:
            tried.append(f"{path} ({stale})")
        elif found.works and not lacking:
            if not found.lacks(wants):
                return found
            second = second or found
        else:
            without = f"Python {found.version} without {' and '.join(lacking)}"
            tried.append(f"{path} ({found.error or without})")
    if second is not None:
        return second
    said = "; ".join(tried) or "nothing: none was found"
    if not set(needs) - {"torch"}:
        verb = "imports torch" if needs else "can be started"
        raise RunError(
            "no-python",
            f"no Python on this host {verb}; tried {said}",
            f"install torch into one of them, or {SET_PYTHON}",
        )
    raise RunError(
        "no-package",
        f"no Python on this host has {' and '.join(needs)}, which {what_for} needs; tried {said}",
        f"{_install(needs)}, which builds an environment there that later launches find"
        if "torch" not in needs or "torch" in has
        else f"install torch into one of them first, then {_install(needs)}",
    )


def _stale(home: str, found: Interpreter) -> str:
    """Why an environment of ours is not to be used any more: what it was made from has another torch now."""
    folder = os.path.dirname(os.path.dirname(found.path))
    if os.path.dirname(folder) != paths.env_dir(home):
        return ""
    made = files.read_json(os.path.join(folder, MARKER)) or {}
    if not made.get("torch") or made["torch"] == found.torch:
        return ""
    return f"{made.get('recipe')} was built for torch {made['torch']}, and now there is {found.torch}"


def _install(needs: Sequence[str]) -> str:
    """The command that brings the last of `needs`. Whoever shows it knows the name of the host."""
    return f"encamp env build {needs[-1]} --on HOST"


def _named(home: str, python: str, cwd: str, needs: Sequence[str], what_for: str) -> Interpreter:
    path = os.path.expanduser(python)
    if "/" not in path:
        path = shutil.which(path) or path
    path = os.path.join(cwd, path)
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise RunError("no-python", f"{python} is not a program on this host", SET_PYTHON)
    found = inspect(home, path)
    lacking = found.lacks(needs)
    if "torch" in lacking or not found.works:
        why = found.error or "it has no torch, and torchrun comes with torch"
        if set(needs) - {"torch"}:
            why = found.error or f"it has no {' and '.join(lacking)}, which {what_for} needs"
        raise RunError("no-python", f"{path} cannot be used: {why}", f"install torch there, or {SET_PYTHON}")
    if lacking:
        raise RunError(
            "no-package",
            f"{path} has no {' and '.join(lacking)}, which {what_for} needs",
            f'{_install(lacking)} --python {path}, and leave python at "auto" to use what that builds',
        )
    return found


def candidates(cwd: str = "", home: str = "") -> List[str]:
    """Paths of the Pythons found, without asking them: no program twice, most likely ones first.

    With `home` the environments that were built there by a recipe come last.
    """
    found: Dict[str, str] = {}
    for path in (*_places(cwd), *_built(home)):
        if len(found) < MAX_CANDIDATES and os.access(path, os.X_OK) and not os.path.isdir(path):
            # The folder's links are followed and not the program's: in a virtual environment that is one
            # to the Python it was made with.
            found.setdefault(os.path.realpath(os.path.dirname(path)), path)
    return list(found.values())


def _built(home: str) -> Iterator[str]:
    """The Pythons of environments that are complete, see `envs`, newest first: those that a recipe made."""
    found = []
    for marker in _glob(os.path.join(glob.escape(paths.env_dir(home)), "*", MARKER)) if home else ():
        made = files.read_json(marker) or {}
        if made.get("recipe"):
            python = os.path.join(os.path.dirname(marker), "bin", "python")
            found.append((str(made.get("built") or ""), python))
    return (python for _, python in sorted(found, reverse=True))


def _places(cwd: str) -> Iterator[str]:
    folders = [os.path.join(cwd, name) for name in (".venv", "venv")] if cwd else []
    active = os.environ.get("ACTIVE_VENV", "")  # Vast.ai: the name of the one that logins activate
    if active:
        folders.append(os.path.join("/venv", active))
    folders += ["/venv/main", *_glob("/venv/*")]
    folders += [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    user = os.path.expanduser("~")
    for conda in ("/opt/conda", "/opt/miniconda3", *(f"{user}/{name}" for name in _CONDAS)):
        folders += [conda, *_glob(f"{conda}/envs/*")]
    folders += [f"{user}/.venv", f"{user}/venv", *_glob(f"{user}/.virtualenvs/*")]
    folders += ["/workspace/.venv", *_glob("/workspace/*venv*"), *_glob("/workspace/*/.venv")]
    for folder in folders:
        if folder:
            yield os.path.join(folder, "bin", "python")
    for name in ("python3", "python"):
        path = shutil.which(name)
        if path is not None:
            yield path
    yield from ("/usr/local/bin/python3", "/usr/bin/python3", sys.executable)


_CONDAS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")


def _glob(pattern: str) -> List[str]:
    return sorted(glob.glob(pattern))


def inspect(home: str, path: str) -> Interpreter:
    """Ask one interpreter, or remember what it said when nothing that matters has changed since."""
    known = (files.read_json(paths.interpreters_file(home)) or {}).get(path)
    if isinstance(known, dict) and known.get("stamps") == _stamps(known.get("watched"), path):
        answer = known.get("answer")
        if isinstance(answer, dict) and "packages" in answer:
            return _interpreter(path, answer)
    answer = _ask(path)
    watched = answer.pop("watched", None)
    if watched and "error" not in answer:
        entry = {"watched": watched, "stamps": _stamps(watched, path), "answer": answer}
        _remember(home, path, entry)
    return _interpreter(path, answer)


def _remember(home: str, path: str, entry: Dict[str, object]) -> None:
    known = files.read_json(paths.interpreters_file(home)) or {}
    known = {other: value for other, value in known.items() if os.path.exists(other)}
    known[path] = entry
    try:
        files.write_json(paths.interpreters_file(home), known)
    except OSError:
        pass  # a full disk: it is asked again next time


def _stamps(watched: object, path: str) -> List[List[object]]:
    """What tells whether something was installed, removed or replaced."""
    stamps: List[List[object]] = []
    for name in [path, *(watched if isinstance(watched, list) else [])]:
        try:
            status = os.stat(str(name))
        except OSError:
            stamps.append([str(name), 0, 0])
        else:
            stamps.append([str(name), status.st_mtime_ns, status.st_size])
    return stamps


def output_of(words: List[str]) -> str:
    """What a program prints; empty when it fails."""
    try:
        ended = subprocess.run(
            words,
            cwd="/",
            env=environment.inherited(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=IMPORT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.decode("utf-8", "replace")


def _ask(path: str) -> Dict[str, object]:
    try:
        ended = subprocess.run(
            [path, "-c", CHECK],
            cwd="/",
            env=environment.inherited(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=IMPORT_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch takes more than {IMPORT_SECONDS:.0f} s"}
    except OSError as error:
        return {"error": f"cannot be started: {error.strerror}"}
    for line in reversed(ended.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            try:
                answer = json.loads(line[len(MARK) :])
            except ValueError:
                break
            return answer if isinstance(answer, dict) else {}
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return {"error": f"ended with code {ended.returncode}" + (f": {said[-1]}" if said else "")}


def _interpreter(path: str, answer: Dict[str, object]) -> Interpreter:
    torch, cuda, packages = answer.get("torch"), answer.get("cuda"), answer.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    return Interpreter(
        path,
        str(answer.get("version") or ""),
        torch if isinstance(torch, str) else None,
        cuda if isinstance(cuda, str) else None,
        " ".join(str(answer.get("error") or "").split())[:MAX_ERROR],
        {str(name): str(version)[:MAX_VERSION] for name, version in packages.items()},
    )
