"""The shim: the file that the launcher starts as every rank, and that then becomes the user's program.

    python -u rank.py script PATH ARGUMENT...        as python PATH ARGUMENT...
    python -u rank.py module NAME ARGUMENT...        as python -m NAME ARGUMENT...

It stands alone: it is copied into the attempt's folder and runs under the user's interpreter, so it imports
nothing of ours. Before the program starts it points standard output and error at the rank's log, writes
`rank.json`, makes SIGUSR2 dump the Python stacks and waits for torch's optimizers, to count their steps; from
then on torch's own server answers on `flight.sock` which collectives this rank has called. At the end it
writes how the program ended. Nothing of this may change what the program does or says: where
recording fails the program still runs, and where CPython has a habit the shim has it too.

The shim runs in a module that is no longer `__main__` and keeps no reference to the program's namespace,
which therefore dies at exit as it always does. Modules that the interpreter has not loaded by itself are
taken out of `sys.modules` again: the program's own folder may hold a file of that name.
"""

# ruff: noqa: E402 (what is imported, and from where, is this file's business)
# No "from __future__ import annotations": it would leave `__future__` in sys.modules. Hence the quotes below.
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType

SAFE_PATH = getattr(sys.flags, "safe_path", False)
"""Python was told not to put the program's folder on `sys.path`."""

if __name__ == "__main__" and not SAFE_PATH:
    del sys.path[0]  # the attempt's folder; whose place the program's own takes

LOADED = set(sys.modules)

import atexit
import builtins
import faulthandler
import fcntl
import mmap
import os
import time
from _signal import SIGINT, SIGUSR2  # type: ignore[import-not-found]
from _struct import Struct
from _thread import get_ident

for _name in set(sys.modules) - LOADED - set(sys.builtin_module_names):
    del sys.modules[_name]

STACKS_SIGNAL = 62
"""The agent asks by this one, which no program has a use for; SIGUSR2 is for people, and may be taken."""

STEPS_MAGIC = b"ENCAMP1\0"
STEPS_BYTES = 32
HIGH_FD = 200
OPTIMIZER_MODULE = "torch.optim.optimizer"
COLLECTIVES_MODULE = "torch._C._distributed_c10d"

MAX_MESSAGE = 8 * 1024
MAX_TRACEBACK = 64 * 1024
"""Characters of an error that are kept: the first of its message, the last of its traceback."""

OWN_PATH = list(sys.path)
PID = os.getpid()


def record_start() -> "Recorder | None":
    """Take over this rank's log and write `rank.json`. None when this is no attempt or cannot be recorded."""
    attempt_dir = os.environ.get("ENCAMP_ATTEMPT_DIR", "")
    rank = os.environ.get("RANK", "")
    if not attempt_dir or not rank.isdigit():
        return None
    rank_dir = os.path.join(attempt_dir, "rank" + rank)
    try:
        os.makedirs(rank_dir, 0o700, exist_ok=True)
        log = os.open(rank_dir + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ["ENCAMP_RANK_DIR"] = rank_dir
        recorder = Recorder(rank_dir)
        recorder.write_start(int(rank))
        recorder.dump_stacks_on_signal()
    except OSError as error:
        sys.stderr.write(f"encamp: rank {rank} is not recorded: {error}\n")
        return None
    sys.meta_path.insert(0, OptimizerWatch(recorder))
    atexit.register(recorder.write_exit)  # the first to be registered, so the last to be called
    return recorder


def take_secrets() -> None:
    """Put the run's secrets into the environment, and not before: /proc shows what it began with.

    The file holds one JSON object of strings without any space, see `secret_file.py`.
    """
    attempt_dir = os.environ.get("ENCAMP_ATTEMPT_DIR", "")
    if not attempt_dir:
        return
    try:
        with open(os.path.join(attempt_dir, "secrets.json"), "rb") as file:
            text = file.read().decode("ascii")
        from _json import scanstring  # the module json may be the program's

        if "_json" not in LOADED:
            sys.modules.pop("_json", None)
        at = 1
        while text[at : at + 1] == '"':
            name, at = scanstring(text, at + 1)
            os.environ[name], at = scanstring(text, at + 2)
            at += 1
    except FileNotFoundError:
        pass  # most runs have none
    except (OSError, ImportError, ValueError) as error:
        sys.stderr.write(f"encamp: the secrets of this run cannot be read: {type(error).__name__}\n")


class Recorder:
    """What is written about this rank while it runs and when it ends, all of it into its folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        self.exit_code = 0
        self.server: object = None

    def write_start(self, rank: int) -> None:
        """Say which process is this rank. Raises OSError."""
        with open("/proc/self/stat", "rb") as file:
            start_time = int(file.read().rpartition(b")")[2].split()[19])
        values = {
            "rank": rank,
            "local_rank": int(os.environ.get("LOCAL_RANK", rank)),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "pid": PID,
            "thread": get_ident(),
            "start_time": start_time,
            "started": time.time(),
        }
        self._write("rank.json", values)

    def dump_stacks_on_signal(self) -> None:
        """Let SIGUSR2 and crashes write the Python stacks of all threads. Raises OSError."""
        path = os.path.join(self.folder, "stacks.txt")
        stacks = _out_of_the_way(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        if not faulthandler.is_enabled():  # PYTHONFAULTHANDLER: the user wants crashes on standard error
            faulthandler.enable(stacks)
        faulthandler.register(SIGUSR2, stacks)
        faulthandler.register(STACKS_SIGNAL, stacks)

    def count_steps(self, optimizers: object) -> None:
        """Count the steps of all optimizers from now on. `optimizers` is the module torch.optim.optimizer."""
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            return  # a torch that old has no such hook: the steps of this rank stay unknown
        try:
            area = self._map_steps()
        except OSError:
            return
        counts: dict[int, int] = {}
        most = 0
        pack, now, monotonic = Struct("<Qdd").pack_into, time.time, time.monotonic

        def count(optimizer: object, _args: object, _kwargs: object) -> None:
            nonlocal most
            key = id(optimizer)
            steps = counts[key] = counts.get(key, 0) + 1
            if steps > most:
                most = steps
                pack(area, 8, steps, now(), monotonic())

        count._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled optimizer calls it as it is

        def forget() -> None:
            nonlocal pack
            pack = lambda *_: None  # noqa: E731  # a fork that trains on its own is not this rank

        os.register_at_fork(after_in_child=forget)
        register(count)

    def serve_flight_record(self) -> None:
        """Let torch tell on a socket in this rank's folder which collectives were called and which are over.

        Threads of torch's answer, in C++: the program notices nothing, and they answer while it hangs.
        """
        server = getattr(sys.modules.get(COLLECTIVES_MODULE), "_WorkerServer", None)
        if server is None:
            return  # before torch 2.4, or without torch.distributed
        try:
            os.unlink(os.path.join(self.folder, "flight.sock"))
        except OSError:
            pass
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        # The path of a socket has at most 107 bytes, and this one is always short.
        self.server = _quietly(server, f"/proc/self/fd/{folder}/flight.sock")
        os.close(folder)

    def _map_steps(self) -> mmap.mmap:
        path = os.path.join(self.folder, "steps")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, STEPS_MAGIC + bytes(STEPS_BYTES - len(STEPS_MAGIC)))
            return mmap.mmap(fd, STEPS_BYTES)
        finally:
            os.close(fd)

    def write_error(self, error: BaseException) -> None:
        """Write down what ends the program, for encamp and, unless the program did it, for torchrun."""
        if os.getpid() != PID:
            return
        self.exit_code = exit_code_of(error)
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            return
        kind = type(error).__name__
        try:
            message = str(error)[:MAX_MESSAGE]
        except Exception:  # the program's own __str__ may do anything
            message = ""
        text = _format(error)[-MAX_TRACEBACK:]
        self._write_at_end("error.json", {"type": kind, "message": message, "traceback": text})
        if text and self.error_file:
            extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
            record = {"message": {"message": f"{kind}: {message}", "extraInfo": extra}}
            part = os.path.join(self.folder, "torchelastic-error.part")
            try:
                _write_file(part, record)
                os.link(part, self.error_file)  # fails when torch's @record has already written it
            except OSError:
                pass
            try:
                os.unlink(part)
            except OSError:
                pass

    def write_exit(self) -> None:
        """Write down the exit code, as the last thing before the interpreter goes."""
        if os.getpid() == PID:
            if self.server is not None:
                _quietly(self.server.shutdown)  # type: ignore[attr-defined]  # it must not outlive the interpreter
            self._write_at_end("exit.json", {"code": self.exit_code, "time": time.time()})

    def _write_at_end(self, name: str, values: "Mapping[str, object]") -> None:
        try:
            self._write(name, values)
        except OSError:
            pass  # a full disk: the supervisor still knows what torchrun says

    def _write(self, name: str, values: "Mapping[str, object]") -> None:
        path = os.path.join(self.folder, name)
        _write_file(path + ".part", values)
        os.rename(path + ".part", path)


class OptimizerWatch:
    """An import hook that waits for torch's optimizers, adds the step counter to them, and is gone."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Leave every import to the others; for the one module waited for, act when it has been executed."""
        if name != OPTIMIZER_MODULE or os.getpid() != PID:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]
        recorder = self.recorder

        def exec_module(module: object) -> None:
            del loader.exec_module  # type: ignore[attr-defined]  # and the class's own is back
            execute(module)
            recorder.count_steps(module)
            recorder.serve_flight_record()

        loader.exec_module = exec_module  # type: ignore[attr-defined]


def _quietly(action: "Callable[..., object]", *arguments: object) -> "object | None":
    """Call something of torch's that greets on standard error, which is the program's. None when it fails."""
    try:
        said = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None  # the program has no standard error
    try:
        os.dup2(nowhere, 2)
        return action(*arguments)
    except (RuntimeError, TypeError, ValueError):
        return None
    finally:
        os.dup2(said, 2)
        os.close(said)
        os.close(nowhere)


def _out_of_the_way(fd: int) -> int:
    """Give `fd` a high number: a program that closes what it did not open must not open its own there."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # fewer are allowed
        return fd
    os.close(fd)
    return high


def _write_file(path: str, values: "Mapping[str, object]") -> None:
    data = _json(values).encode("ascii")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _json(value: object) -> str:
    """JSON of objects, strings and numbers: the module of that name may be the program's."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key)}:{_json(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return repr(value)
    return '"' + "".join(map(_json_character, value)) + '"'


def _json_character(character: str) -> str:
    code = ord(character)
    if code > 0xFFFF:
        return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 | code & 0x3FF:04x}"
    return character if 32 <= code < 127 and character not in '"\\' else f"\\u{code:04x}"


def _format(error: BaseException) -> str:
    """The traceback as Python prints it; empty when the program has a `traceback` module of its own."""
    if isinstance(error, SystemExit):
        return ""
    sys.path, path = OWN_PATH, sys.path
    try:
        import traceback
    finally:
        sys.path = path
    form = getattr(traceback, "format_exception", None)
    return "".join(form(type(error), error, own_frames_removed(error))) if form else ""


# --- becoming the program ----------------------------------------------------------------------------------


def hide_us(kind: str) -> None:
    """Let `sys.orig_argv` (Python 3.10) show the command line that would have started the program itself."""
    original = getattr(sys, "orig_argv", None)
    if original is not None:
        start = len(original) - len(sys.argv)
        original[start : start + 2] = ["-m"] if kind == "module" else []


def enter_main() -> None:
    """Put a new, empty `__main__` in our place, with the names that CPython gives it and in their order."""
    main = type(sys)("__main__")
    given: dict[str, object] = {
        "__package__": None,
        "__spec__": None,
        "__annotations__": {},
        "__builtins__": builtins,
    }
    for name in list(globals()):
        if name in given:
            setattr(main, name, given[name])
        elif name == "__loader__":
            main.__loader__ = sys.modules["_frozen_importlib"].BuiltinImporter
    sys.modules["__main__"] = main


def place_path(entry: str) -> None:
    """Make `entry` the first of `sys.path`, unless Python was told to keep it off."""
    if not SAFE_PATH:
        sys.path.insert(0, entry)


def run_module(name: str, arguments: "list[str]") -> None:
    """What `python -m NAME` does. Its frames of `runpy` stand in tracebacks there as well."""
    sys.argv[:] = ["-m", *arguments]
    place_path(os.getcwd())
    import runpy

    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def run_folder(path: str) -> None:
    """What `python PATH` does for a folder or an archive: its `__main__` module is the program."""
    sys.path.insert(0, as_named(path))
    import runpy

    runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]


def as_named(path: str) -> str:
    """What Python makes of the path on its command line: absolute from 3.9 on, never normalised."""
    return os.path.join(os.getcwd(), path) if sys.version_info >= (3, 9) else path


def is_folder(path: str) -> bool:
    """Whether modules can be imported out of `path` itself: a folder, or an archive."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def load_script(path: str) -> "CodeType":
    """Compile the script and set up `__main__` for it. Exits as Python does when it cannot be read."""
    place_path(os.path.dirname(os.path.realpath(path)))
    path = as_named(path)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(2) from None
    main = sys.modules["__main__"]
    main.__file__ = path
    main.__cached__ = None  # type: ignore[attr-defined]
    main.__loader__ = type(__loader__)("__main__", path)  # type: ignore[name-defined]
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def exit_code_of(error: BaseException) -> int:
    """The exit status that Python gives a process that ends with `error`."""
    if isinstance(error, KeyboardInterrupt):
        return -int(SIGINT)
    code = error.code if isinstance(error, SystemExit) else 1
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def own_frames_removed(error: BaseException) -> "TracebackType | None":
    """The traceback of `error` from the program's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def print_without_us() -> None:
    """Let the hook for uncaught exceptions see, of the one that is coming, a traceback without our frames."""
    hook = sys.excepthook

    def show(kind: "type[BaseException]", error: BaseException, _trace: "TracebackType | None") -> None:
        sys.excepthook = hook
        trace = sys.last_traceback = error.__traceback__ = own_frames_removed(error)
        try:
            hook(kind, error, trace)
        except SystemExit:
            raise
        except BaseException as second:
            second.__traceback__ = own_frames_removed(second)
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(second), second, second.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = show


if __name__ == "__main__":
    _recorder = record_start()
    take_secrets()
    _kind, _target, *_arguments = sys.argv[1:]
    hide_us(_kind)
    enter_main()
    try:
        if _kind == "module":
            run_module(_target, _arguments)
        else:
            sys.argv[:] = [_target, *_arguments]
            if is_folder(_target):
                run_folder(_target)
            else:
                exec(load_script(_target), sys.modules["__main__"].__dict__)
    except BaseException as _error:
        # Recorded here and not from the hook: what runs between an uncaught KeyboardInterrupt and the end
        # can make CPython forget that it was one.
        if _recorder is not None:
            _recorder.write_error(_error)
        if not isinstance(_error, SystemExit):
            print_without_us()
        raise
