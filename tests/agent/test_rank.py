"""The shim: a program behaves and prints byte for byte as if it had been started without it.

Every case runs under every Python of this machine, once directly and once under the shim, with the same
environment and with both outputs going to one file as they do under torchrun.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from waiting import wait_until

import agent.rank

SHIM = Path(agent.rank.__file__)

ENDINGS = {
    "return": 0, "0": 0, "3": 3, "256": 0, "-1": 255, "none": 0, "text": 1, "tuple": 1, "now": None,
    "error": 1, "chained": 1, "rude": 1, "interrupted": -2, "failing-hook": 1, "polite-hook": 1,
    "exiting-hook": 1, "forked": 0, "abort": None,
}  # fmt: skip
"""Ways of tests/scripts/ending.py, and the code that the shim can know (None: it cannot)."""


class Ended:
    """How a process ended and what it printed."""

    def __init__(self, code: int, output: bytes) -> None:
        self.code = code
        self.output = output


class Shim:
    """Starts programs as rank 1 of an attempt of its own, and directly."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.attempt = folder / "attempt"
        self.attempt.mkdir(parents=True)
        (self.attempt / "rank.py").write_bytes(SHIM.read_bytes())
        self.direct_log = folder / "direct.log"
        self.extra: dict[str, str] = {}

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {**kept, "LANG": "C.UTF-8", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **self.extra}

    def start(self, kind: str, target: str, *arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
        command = [self.python, "-u", str(self.attempt / "rank.py"), kind, target, *arguments]
        environment = {**self.environment(), "ENCAMP_ATTEMPT_DIR": str(self.attempt)}
        return subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, kind: str, target: str, *arguments: str, cwd: Path) -> Ended:
        process = self.start(kind, target, *arguments, cwd=cwd)
        launcher_sees, _ = process.communicate(timeout=60)
        assert launcher_sees == b""
        return Ended(process.returncode, (self.attempt / "rank1.log").read_bytes())

    def run_directly(self, kind: str, target: str, *arguments: str, cwd: Path) -> Ended:
        command = [self.python, "-u", *(["-m"] if kind == "module" else []), target, *arguments]
        with self.direct_log.open("ab") as log:
            environment = {**self.environment(), "ENCAMP_ATTEMPT_DIR": "", "ENCAMP_RANK_DIR": ""}
            process = subprocess.run(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                check=False, timeout=60,
            )  # fmt: skip
        return Ended(process.returncode, self.direct_log.read_bytes())

    def compare(self, kind: str, target: str, *arguments: str, cwd: Path) -> Ended:
        """Run both ways, require the same, and return it."""
        direct = self.run_directly(kind, target, *arguments, cwd=cwd)
        ours = self.run(kind, target, *arguments, cwd=cwd)
        assert _comparable(ours) == _comparable(direct)
        assert ours.code == direct.code
        return ours

    def fact(self, name: str) -> dict[str, object] | None:
        path = self.attempt / "rank1" / name
        return json.loads(path.read_bytes()) if path.exists() else None


def _comparable(ended: Ended) -> list[bytes]:
    """The lines without what differs from process to process: addresses of objects, times taken."""
    return [re.sub(rb"0x[0-9a-f]{8,}| in [0-9.]+s$", b"", line) for line in ended.output.split(b"\n")]


@pytest.fixture
def shim(python: str, tmp_path: Path) -> Shim:
    return Shim(python, tmp_path)


def test_a_script_sees_itself_started_directly(shim: Shim, scripts: Path) -> None:
    ended = shim.compare("script", "identity.py", "-x", "--flag=1", "--", "a b", "", cwd=scripts)
    assert ended.code == 0
    assert b"['identity.py', '-x', '--flag=1', '--', 'a b', '']" in ended.output
    assert b"rank.py" not in ended.output


@pytest.mark.parametrize(
    "path", ["scripts/identity.py", "./scripts/identity.py", "scripts/../scripts/identity.py"]
)
def test_a_script_is_named_as_it_was_typed(shim: Shim, scripts: Path, path: str) -> None:
    assert shim.compare("script", path, cwd=scripts.parent).code == 0


def test_python_s_own_settings_hold(shim: Shim, scripts: Path) -> None:
    shim.extra.update(PYTHONSAFEPATH="1", PYTHONWARNINGS="error", PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")
    assert shim.compare("script", "identity.py", cwd=scripts).code == 0
    assert shim.compare("module", "identity", cwd=scripts).code in (0, 1)
    shim.extra.update(PYTHONFAULTHANDLER="1")
    assert b"Fatal Python error" in shim.run("script", "ending.py", "abort", cwd=scripts).output


def test_a_script_is_found_through_a_link_and_by_its_absolute_path(
    shim: Shim, scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.py").symlink_to(scripts / "importer.py")
    assert b"found next to the script" in shim.compare("script", "link.py", cwd=tmp_path).output
    assert shim.compare("script", str(scripts / "importer.py"), cwd=tmp_path).code == 0


@pytest.mark.parametrize("way", ENDINGS)
def test_every_ending_is_the_same_and_recorded(shim: Shim, scripts: Path, way: str) -> None:
    ended = shim.compare("script", str(scripts / "ending.py"), way, cwd=scripts)
    assert b"rank.py" not in ended.output
    code = ENDINGS[way]
    recorded = shim.fact("exit.json")
    if code is None:
        assert recorded is None
    else:
        assert recorded is not None
        assert recorded["code"] == code
        assert abs(time.time() - float(str(recorded["time"]))) < 60


def test_an_uncaught_exception_is_written_down_with_its_chain(shim: Shim, scripts: Path) -> None:
    shim.run("script", str(scripts / "ending.py"), "chained", cwd=scripts)
    error = shim.fact("error.json")
    assert error is not None
    assert error["type"] == "RuntimeError"
    assert error["message"] == "while handling ☃ \U0001f600"
    trace = str(error["traceback"])
    assert (
        trace.index("KeyError: 'missing'") < trace.index("ValueError: caused") < trace.index("RuntimeError")
    )
    assert "rank.py" not in trace


def test_an_exit_with_a_text_is_written_down(shim: Shim, scripts: Path) -> None:
    shim.run("script", str(scripts / "ending.py"), "text", cwd=scripts)
    assert shim.fact("error.json") == {"type": "SystemExit", "message": "sorry, no data", "traceback": ""}


def test_a_forked_child_that_fails_is_not_the_rank(shim: Shim, scripts: Path) -> None:
    shim.run("script", str(scripts / "ending.py"), "forked", cwd=scripts)
    assert shim.fact("error.json") is None


def test_torchrun_is_told_of_the_error_unless_the_program_did(
    shim: Shim, scripts: Path, tmp_path: Path
) -> None:
    told, taken = tmp_path / "told.json", tmp_path / "taken.json"
    taken.write_text("torch's @record was here")
    for file in (told, taken):
        shim.extra["TORCHELASTIC_ERROR_FILE"] = str(file)
        shim.run("script", str(scripts / "ending.py"), "error", cwd=scripts)
    message = json.loads(told.read_text())["message"]
    assert message["message"] == "KeyError: 'missing'"
    assert "KeyError: 'missing'" in message["extraInfo"]["py_callstack"]
    assert int(message["extraInfo"]["timestamp"]) > 0
    assert taken.read_text() == "torch's @record was here"


def test_what_outlives_the_last_line_finds_its_globals(shim: Shim, scripts: Path) -> None:
    ended = shim.compare("script", "lingering.py", cwd=scripts)
    assert b"closing in a cycle with a global __main__" in ended.output
    assert b"thread goes on after the main one a global" in ended.output


def test_functions_of_the_script_can_be_pickled_to_its_workers(shim: Shim, scripts: Path) -> None:
    ended = shim.compare("script", "pools.py", "fork", "spawn", "forkserver", cwd=scripts)
    assert ended.output == b"fork [2, 4]\nspawn [2, 4]\nforkserver [2, 4]\n"


def test_modules_and_packages_run_as_with_dash_m(shim: Shim, scripts: Path) -> None:
    assert (
        b"imported relatively __main__ package" in shim.compare("module", "package.tool", cwd=scripts).output
    )
    assert shim.compare("module", "package", "-v", cwd=scripts).code == 0
    assert shim.compare("module", "identity", cwd=scripts).code == 0


def test_a_failing_module_has_the_same_traceback(shim: Shim, scripts: Path) -> None:
    assert b"SystemError: broken" in shim.compare("module", "package.tool", "broken", cwd=scripts).output


def test_a_missing_module_is_refused_in_the_same_words(shim: Shim, scripts: Path) -> None:
    assert shim.compare("module", "no_such_module", cwd=scripts).code == 1
    assert shim.compare("module", "package.nothing", cwd=scripts).code == 1


def test_folders_and_archives_run_as_programs(shim: Shim, scripts: Path, tmp_path: Path) -> None:
    assert shim.compare("script", "package", "x", cwd=scripts).code == 0
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as archive:
        archive.write(scripts / "package" / "__main__.py", "__main__.py")
    assert b"package main" in shim.compare("script", "program.pyz", cwd=tmp_path).output


def test_a_missing_script_is_refused_in_the_same_words(shim: Shim, tmp_path: Path) -> None:
    ended = shim.compare("script", "nowhere.py", cwd=tmp_path)
    assert ended.code == 2
    assert b"nowhere.py" in ended.output
    recorded = shim.fact("exit.json")
    assert recorded is not None
    assert recorded["code"] == 2


@pytest.mark.parametrize(
    "source",
    [
        "x = = 1\n",
        "def f(:\n    pass\n",
        "if True:\nprint(1)\n",
        "print('never closed\n",
        "\n\n\tx = (\n",
        "return 1\n",
    ],
    ids=["operator", "parameter", "indent", "string", "bracket", "return"],
)
def test_syntax_errors_are_shown_alone(shim: Shim, tmp_path: Path, source: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    ended = shim.compare("script", "broken.py", cwd=tmp_path)
    assert ended.code == 1
    assert b"Traceback" not in ended.output


@pytest.mark.parametrize(
    "source",
    [
        b"# -*- coding: latin-1 -*-\nprint('\xe9', ascii('\xe9'))\n", b"\xef\xbb\xbfprint('marked')\n", b"",
        b"'doc'\nprint(__doc__)",
    ],
    ids=["coding", "byte order mark", "empty", "docstring"],
)  # fmt: skip
def test_sources_in_every_form_run(shim: Shim, tmp_path: Path, source: bytes) -> None:
    (tmp_path / "form.py").write_bytes(source)
    assert shim.compare("script", "form.py", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "source",
    [
        "import os; print(os.open('/dev/null', 0), os.listdir('/proc/self/fd')[:4])",
        "print('\\d')\nassert (1, 2)\nimport warnings\nwarnings.warn('careful')",
        "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.fail()\nunittest.main()",
        "import inspect\ndef f(): pass\nprint(inspect.getsource(f), inspect.getmodule(f))",
        "import argparse\nargparse.ArgumentParser().parse_args(['-x'])",
        "import asyncio\nasync def f(): 1 / 0\nasyncio.run(f())",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
        "raise SystemExit(type('Code', (int,), {})(7))",
        "def f():\n  try: yield\n  finally: print('generator closed')\ng = f(); next(g)",
    ],
    ids=["fds", "warnings", "unittest", "inspect", "argparse", "asyncio", "thread", "int", "generator"],
)
def test_ordinary_programs_do_the_same(shim: Shim, tmp_path: Path, source: str) -> None:
    (tmp_path / "program.py").write_text(source)
    ended = shim.compare("script", "program.py", cwd=tmp_path)
    assert b"rank.py" not in ended.output


def test_future_imports_of_the_shim_are_not_the_program_s(shim: Shim, tmp_path: Path) -> None:
    (tmp_path / "eager.py").write_text("def f(x: print('evaluated')): pass\nprint(f.__annotations__)\n")
    shim.compare("script", "eager.py", cwd=tmp_path)


def test_the_program_s_own_modules_win_over_those_the_shim_needs(shim: Shim, tmp_path: Path) -> None:
    names = ["json", "mmap", "struct", "signal", "runpy", "tempfile"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"print('own {name}')\n")
    (tmp_path / "main.py").write_text("\n".join(f"import {name}" for name in names))
    direct = subprocess.run(
        [shim.python, "-u", "main.py"], cwd=tmp_path, env=shim.environment(), capture_output=True, check=False
    )
    ended = shim.run("script", "main.py", cwd=tmp_path)
    assert (ended.code, ended.output) == (direct.returncode, direct.stdout + direct.stderr)


def test_a_program_with_a_traceback_module_of_its_own_still_fails_as_it_does(
    shim: Shim, tmp_path: Path
) -> None:
    (tmp_path / "traceback.py").write_text("print('own traceback')\n")
    (tmp_path / "main.py").write_text("import traceback\nraise ValueError('oops')\n")
    if sys.version_info < (3, 13):  # from 3.13 on Python itself needs the real one to print
        shim.compare("script", "main.py", cwd=tmp_path)
    else:
        shim.run("script", "main.py", cwd=tmp_path)
    error = shim.fact("error.json")
    assert error is not None
    assert error["message"] == "oops"


def test_the_log_holds_every_byte_in_order(shim: Shim, scripts: Path) -> None:
    ended = shim.compare("script", "noise.py", cwd=scripts)
    assert ended.output.startswith(bytes(range(256)) + b"x" * 300_000)
    assert ended.output.endswith(b"no newline at the end")


def test_the_rank_says_who_it_is(shim: Shim, tmp_path: Path) -> None:
    program = tmp_path / "who.py"
    program.write_text("import os\nprint(os.getpid(), os.environ['ENCAMP_RANK_DIR'])\n")
    ended = shim.run("script", str(program), cwd=tmp_path)
    pid, folder = ended.output.split()
    start = shim.fact("rank.json")
    assert start is not None
    assert {key: start[key] for key in ("rank", "local_rank", "world_size", "pid")} == {
        "rank": 1, "local_rank": 1, "world_size": 2, "pid": int(pid),
    }  # fmt: skip
    assert isinstance(start["start_time"], int)
    assert folder.decode() == str(shim.attempt / "rank1")
    for path in (shim.attempt / "rank1.log", shim.attempt / "rank1" / "rank.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (shim.attempt / "rank1").stat().st_mode & 0o777 == 0o700
    assert not list((shim.attempt / "rank1").glob("*.part"))


def test_a_signal_dumps_the_stacks_and_the_program_goes_on(shim: Shim, tmp_path: Path) -> None:
    program = tmp_path / "busy.py"
    program.write_text(
        "import os, time\n"
        "def wait_for_the_file():\n"
        "    print('waiting', flush=True)\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "wait_for_the_file()\n"
        "print('done')\n"
    )
    process = shim.start("script", "busy.py", cwd=tmp_path)
    try:
        log = shim.attempt / "rank1.log"
        wait_until(lambda: log.exists() and b"waiting" in log.read_bytes())
        process.send_signal(signal.SIGUSR2)
        stacks = shim.attempt / "rank1" / "stacks.txt"
        wait_until(lambda: b"wait_for_the_file" in stacks.read_bytes())
        (tmp_path / "go").touch()
        assert process.wait(30) == 0
        assert log.read_bytes() == b"waiting\ndone\n"
    finally:
        process.kill()
        process.communicate()


def test_where_nothing_can_be_written_the_program_runs_all_the_same(python: str, tmp_path: Path) -> None:
    program = tmp_path / "fine.py"
    program.write_text("import os\nprint('fine', 'ENCAMP_RANK_DIR' in os.environ)\n")
    (tmp_path / "file").touch()
    base = {"PATH": os.environ["PATH"], "RANK": "0"}
    for attempt, said in ((str(tmp_path / "file"), b"rank 0 is not recorded"), ("", b"")):
        command = [python, "-u", str(SHIM), "script", str(program)]
        ended = subprocess.run(
            command, env={**base, "ENCAMP_ATTEMPT_DIR": attempt}, capture_output=True, check=False, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (0, b"fine False\n")
        assert said in ended.stderr


# A package that has what the step counter looks for in torch, without torch.
FAKE_TORCH = """
hooks = {}
def register_optimizer_step_post_hook(hook):
    hooks[len(hooks)] = hook
class Optimizer:
    def step(self):
        for hook in hooks.values():
            hook(self, (), {})
"""


def _torch_like(folder: Path) -> None:
    (folder / "torch" / "optim").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "optim" / "__init__.py").write_text("from .optimizer import Optimizer\n")
    (folder / "torch" / "optim" / "optimizer.py").write_text(FAKE_TORCH)


def test_steps_are_counted_for_each_optimizer_and_the_most_is_published(shim: Shim, tmp_path: Path) -> None:
    _torch_like(tmp_path)
    (tmp_path / "gan.py").write_text(
        "import os, sys, time\n"
        "watchers = len(sys.meta_path)\n"
        "import torch.optim\n"
        "module = torch.optim.optimizer\n"
        "print(len(sys.meta_path) - watchers, vars(module.__loader__), module.hooks.keys())\n"
        "critic, painter = torch.optim.Optimizer(), torch.optim.Optimizer()\n"
        "for _ in range(5):\n"
        "    for _ in range(3): critic.step()\n"
        "    painter.step()\n"
        "if os.fork() == 0:\n"
        "    for _ in range(1000): critic.step()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    before = time.time()
    ended = shim.run("script", "gan.py", cwd=tmp_path)
    path = tmp_path / "torch" / "optim" / "optimizer.py"
    assert (
        ended.output == f"-1 {{'name': 'torch.optim.optimizer', 'path': '{path}'}} dict_keys([0])\n".encode()
    )
    area = (shim.attempt / "rank1" / "steps").read_bytes()
    assert len(area) == 32
    steps = agent.rank.Struct("<8sQdd").unpack(area)
    assert steps[:2] == (b"ENCAMP1\0", 15)
    assert before <= steps[2] <= time.time()
    assert steps[3] > 0


def test_a_program_without_torch_has_no_step_count(shim: Shim, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('plain')\n")
    shim.run("script", "plain.py", cwd=tmp_path)
    assert not (shim.attempt / "rank1" / "steps").exists()


def test_a_failing_torch_fails_as_it_does_without_us(shim: Shim, tmp_path: Path) -> None:
    _torch_like(tmp_path)
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text("raise ImportError('libcuda is missing')\n")
    (tmp_path / "main.py").write_text("import torch.optim\n")
    ended = shim.run("script", "main.py", cwd=tmp_path)
    assert ended.code == 1
    assert b"libcuda is missing" in ended.output


# What torch has from 2.4 on, as far as the shim asks for it; `{how}` is what its start does.
FAKE_SERVER = """
import os, socket
class _WorkerServer:
    def __init__(self, path):
        {how}
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
    def shutdown(self):
        self.socket.close()
"""

TRAINS = (
    "import torch._C._distributed_c10d, torch.optim\n"
    "optimizer = torch.optim.Optimizer()\n"
    "for _ in range(5): optimizer.step()\n"
    "print('trained')\n"
)


def _server_like(folder: Path, how: str = "pass") -> None:
    _torch_like(folder)
    (folder / "torch" / "_C").mkdir()
    (folder / "torch" / "_C" / "__init__.py").write_text("")
    (folder / "torch" / "_C" / "_distributed_c10d.py").write_text(FAKE_SERVER.format(how=how))


def test_under_an_old_torch_there_are_no_steps_and_no_record(shim: Shim, tmp_path: Path) -> None:
    _server_like(tmp_path)
    (tmp_path / "torch" / "_C" / "_distributed_c10d.py").write_text("")
    optimizers = "class Optimizer:\n    def step(self): pass\n"
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(optimizers)
    (tmp_path / "main.py").write_text(TRAINS)
    assert shim.compare("script", "main.py", cwd=tmp_path).output == b"trained\n"
    assert shim.fact("exit.json")
    assert not {"steps", "flight.sock"} & {path.name for path in (shim.attempt / "rank1").iterdir()}


def test_a_server_that_fails_to_start_is_not_heard_of(shim: Shim, tmp_path: Path) -> None:
    _server_like(tmp_path, "os.write(2, b'cannot listen'); raise RuntimeError(path)")
    (tmp_path / "main.py").write_text(TRAINS)
    assert shim.compare("script", "main.py", cwd=tmp_path).output == b"trained\n"
    assert (shim.attempt / "rank1" / "steps").exists()


def test_the_path_of_the_socket_may_be_longer_than_a_socket_s(python: str, tmp_path: Path) -> None:
    shim = Shim(python, tmp_path / ("long" * 30))
    _server_like(tmp_path)
    (tmp_path / "main.py").write_text(TRAINS)
    assert shim.run("script", "main.py", cwd=tmp_path).output == b"trained\n"
    assert (shim.attempt / "rank1" / "flight.sock").is_socket()


def test_a_program_goes_on_without_its_folder(shim: Shim, tmp_path: Path) -> None:
    _server_like(tmp_path)
    removes = (
        "import os, shutil\nshutil.rmtree(os.environ['ENCAMP_RANK_DIR'] or os.devnull, ignore_errors=True)\n"
    )
    (tmp_path / "main.py").write_text(f"{removes}{TRAINS}raise ValueError('the end')\n")
    ended = shim.compare("script", "main.py", cwd=tmp_path)
    assert ended.code == 1 and ended.output.endswith(b"ValueError: the end\n")
    assert not (shim.attempt / "rank1").exists()


@pytest.mark.bench
def test_counting_a_step_takes_less_than_a_microsecond(tmp_path: Path) -> None:
    """The fastest of many rounds: what the hook itself takes, whatever else this machine does."""
    _torch_like(tmp_path)
    shim = Shim(sys.executable, tmp_path / "shim")
    (tmp_path / "speed.py").write_text(
        "import time, torch.optim\n"
        "optimizer, hook = torch.optim.Optimizer(), torch.optim.optimizer.hooks[0]\n"
        "def measure():\n"
        "    start = time.perf_counter()\n"
        "    for _ in range(10000): hook(optimizer, (), {})\n"
        "    return time.perf_counter() - start\n"
        "print(min(measure() for _ in range(30)) / 10000)\n"
    )
    ended = shim.run("script", "speed.py", cwd=tmp_path)
    assert float(ended.output) < 1e-6
