"""From a spec to a command: what is executed, with which environment, and what is refused and how."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest

from agent import environment, launch, launchers, paths, ports, probe, wire
from agent.errors import RunError

SHA = "0123456789abcdef" * 4
TORCH = probe.Interpreter("/venv/main/bin/python", "3.11.7", "2.13.0+cu130", "13.0")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home directory with a script in it, on a host whose interpreter is known."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(probe, "resolve", lambda *_: TORCH)
    for name in ("OMP_NUM_THREADS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return folder


def spec(**changes: object) -> wire.LaunchSpec:
    base = wire.LaunchSpec(
        "gpt-1", "gpt", "p", "ddp", "script", "train.py", ("--lr", "1e-3"), nproc_per_node=4
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def resolve(home: str, given: wire.LaunchSpec, **host: int) -> launch.Command:
    gpus = [wire.GpuSample(index, f"GPU-{index}", "H100", "ok") for index in range(host.get("gpus", 0))]
    return launch.resolve(home, given, 3, gpus=gpus, cores=host.get("cores", 8))


def refused(home: str, given: wire.LaunchSpec) -> RunError:
    with pytest.raises(RunError) as refusal:
        resolve(home, given)
    return refusal.value


def test_torchrun_is_started_on_this_host_alone(home: str, project: Path) -> None:
    command = resolve(home, spec())
    attempt = paths.attempt_dir(home, "gpt-1", 3)
    assert command.argv == (
        "/venv/main/bin/python", "-m", "torch.distributed.run",
        "--nnodes", "1", "--nproc-per-node", "4", "--max-restarts", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{command.port}", "--rdzv-id", "gpt-1-3",
        "--rdzv-conf", "is_host=1", "--local-addr", "127.0.0.1", "--log-dir", f"{attempt}/torchrun",
        f"{attempt}/rank.py", "script", "train.py", "--lr", "1e-3",
    )  # fmt: skip
    assert (command.cwd, command.python, command.world_size) == (str(project), TORCH.path, 4)


def test_the_environment_is_what_we_set_and_nothing_else(
    home: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/venv/main/bin:/bin")
    attempt = paths.attempt_dir(home, "gpt-1", 3)
    assert resolve(home, spec(env={"NCCL_DEBUG": "INFO"}, stop_grace_seconds=90.5)).env == {
        "PATH": "/venv/main/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "2",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "91",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": f"{attempt}/flight_recorder_rank",
        "NCCL_DEBUG": "INFO",
        "ENCAMP_HOME": home,
        "ENCAMP_RUN": "gpt-1",
        "ENCAMP_ATTEMPT": "3",
        "ENCAMP_RUN_DIR": paths.run_dir(home, "gpt-1"),
        "ENCAMP_ATTEMPT_DIR": attempt,
    }


def test_what_the_user_sets_wins(home: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"OMP_NUM_THREADS": "7", "PATH": "/mine", "PYTHONUNBUFFERED": "0"}
    assert theirs.items() <= resolve(home, spec(env=theirs)).env.items()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in resolve(home, spec()).env, "the host's own setting is inherited"


def test_nccl_of_each_job_answers_at_a_port_of_its_own(home: str, project: Path) -> None:
    first, second = (resolve(home, spec(), gpus=2).env["NCCL_RAS_ADDR"] for _ in range(2))
    assert first != second and first.startswith("localhost:")
    theirs = {"NCCL_RAS_ADDR": "localhost:28028"}
    assert theirs.items() <= resolve(home, spec(env=theirs), gpus=2).env.items()


def test_older_torch_gets_the_names_it_knows(
    home: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "resolve", lambda *_: TORCH._replace(torch="2.4.1"))
    env = resolve(home, spec()).env
    assert env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_BUFFER_SIZE" not in env


@pytest.mark.parametrize(
    ("asked", "gpus", "cores", "ranks"),
    [(0, 8, 64, 8), (0, 1, 64, 1), (0, 0, 6, 6), (0, 0, 1, 2), (3, 8, 64, 3)],
)
def test_auto_is_a_rank_a_gpu_or_a_core(
    home: str, project: Path, asked: int, gpus: int, cores: int, ranks: int
) -> None:
    command = resolve(home, spec(nproc_per_node=asked), gpus=gpus, cores=cores)
    assert command.nproc_per_node == command.world_size == ranks
    assert command.env["OMP_NUM_THREADS"] == str(max(1, cores // ranks))


def test_dp_is_one_process_that_uses_all_gpus(home: str, project: Path) -> None:
    command = resolve(home, spec(strategy="dp", nproc_per_node=0), gpus=4)
    assert (command.nproc_per_node, command.world_size, command.gpus) == (1, 1, (0, 1, 2, 3))
    some = spec(strategy="dp", nproc_per_node=0, env={"CUDA_VISIBLE_DEVICES": "1,3"})
    assert resolve(home, some, gpus=4).gpus == (1, 3)
    assert resolve(home, spec(strategy="fsdp", nproc_per_node=0), gpus=4).nproc_per_node == 4


def test_code_comes_before_the_user_s_own_path(home: str, project: Path) -> None:
    Path(paths.code_dir(home, SHA)).mkdir(parents=True)
    given = spec(target_kind="task", target="trainer", code=(wire.CodeRef(SHA, "trainer"),))
    assert resolve(home, given).env["PYTHONPATH"] == paths.code_dir(home, SHA)
    assert resolve(home, given).argv[-4:] == ("module", "trainer", "--lr", "1e-3")
    theirs = dataclasses.replace(given, env={"PYTHONPATH": "/mine"})
    assert resolve(home, theirs).env["PYTHONPATH"] == f"{paths.code_dir(home, SHA)}:/mine"
    assert refused(home, dataclasses.replace(given, code=(wire.CodeRef("0" * 64, "x"),))).code == "no-code"
    assert refused(home, dataclasses.replace(given, code=(wire.CodeRef("../..", "x"),))).code == "no-code"


def test_folders_and_scripts_are_found_from_the_home_directory(home: str, project: Path) -> None:
    (project / "deep").mkdir()
    (project / "deep" / "x.py").write_text("")
    assert resolve(home, spec(cwd="deep", target="x.py")).cwd == str(project / "deep")
    assert resolve(home, spec(cwd="~/deep", target="../train.py")).argv[-3] == "../train.py"
    assert resolve(home, spec(cwd="/tmp", target="~/train.py")).argv[-3] == str(project / "train.py")
    assert resolve(home, spec(target=".")).argv[-3] == "."


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"strategy": "magic"}, "bad-spec", "strategy = 'magic'"),
        ({"run": "../x"}, "bad-spec", "run = '../x'"),
        ({"target_kind": "notebook"}, "bad-spec", "notebook"),
        ({"target": ""}, "bad-spec", "target"),
        ({"target_kind": "module", "target": "-c"}, "bad-spec", "target"),
        ({"nproc_per_node": -1}, "bad-spec", "nproc_per_node = -1"),
        ({"nproc_per_node": 5000}, "bad-spec", "5000"),
        ({"stop_grace_seconds": -1.0}, "bad-spec", "stop_grace_seconds"),
        ({"stall_seconds": -1.0}, "bad-spec", "stall_seconds"),
        ({"env": {"A=B": "x"}}, "bad-spec", "A=B"),
        ({"env": {"": "x"}}, "bad-spec", "env"),
        ({"env": {"ENCAMP_RUN": "x"}}, "bad-spec", "ENCAMP_RUN"),
        ({"args": ("a\0b",)}, "bad-spec", "zero byte"),
        ({"args": ("x" * 200_000,)}, "bad-spec", "too long"),
        ({"args": ("x" * 60_000,) * 20}, "bad-spec", "too long"),
        ({"cwd": "/nowhere"}, "no-cwd", "/nowhere"),
        ({"cwd": "train.py"}, "no-cwd", "train.py"),
        ({"target": "gone.py"}, "no-script", "gone.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_way_out(
    home: str, project: Path, changes: dict[str, object], code: str, said: str
) -> None:
    error = refused(home, spec(**changes))
    assert error.code == code
    assert said in f"{error.message} {error.hint}"
    assert not list(Path(home).iterdir())


def test_words_that_no_locale_can_say_are_passed_on(home: str, project: Path) -> None:
    assert resolve(home, spec(args=("\udcff", "\u2603"))).argv[-2:] == ("\udcff", "\u2603")


def test_ports_are_free_and_differ() -> None:
    found = {ports.free_port() for _ in range(50)}
    assert len(found) > 40
    assert all(port in ports.PORTS for port in found)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_in_use_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as taken:
        try:
            taken.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error}")
        taken.listen()
        port = taken.getsockname()[1]
        other = ports.free_port()
        monkeypatch.setattr(ports.random, "sample", lambda *_: [port, other])
        assert ports.free_port() == other


def test_the_login_s_variables_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSH_AUTH_SOCK", "TMUX", "ENCAMP_RUN", "RANK", "PET_NNODES", "PYTHONHOME", "_"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    kept = environment.inherited()
    assert kept["NCCL_SOCKET_IFNAME"] == "eth0"
    assert not {"SSH_AUTH_SOCK", "TMUX", "ENCAMP_RUN", "RANK", "PET_NNODES", "PYTHONHOME", "_"} & set(kept)


def test_cores_are_at_least_one_and_at_most_the_machine_s() -> None:
    assert 1 <= launch.usable_cores() <= (os.cpu_count() or 1)


def test_horovod_and_tensorflow_are_started_by_our_own_launcher(home: str, project: Path) -> None:
    attempt = paths.attempt_dir(home, "gpt-1", 3)
    command = resolve(home, spec(strategy="horovod", stop_grace_seconds=60))
    assert command.argv == (
        "/venv/main/bin/python", "-u", f"{attempt}/process_launcher.py", "horovod", "--nproc", "4",
        "--grace", "60", "--interface", "lo", "--",
        f"{attempt}/rank.py", "script", "train.py", "--lr", "1e-3",
    )  # fmt: skip
    assert (command.world_size, command.launcher) == (4, "encamp's launcher")
    one = resolve(home, spec(strategy="tf-mirrored", nproc_per_node=0), gpus=8)
    assert (one.nproc_per_node, one.gpus) == (1, tuple(range(8)))
    served = resolve(home, spec(strategy="tf-parameter-server", nproc_per_node=2), gpus=4)
    assert served.argv[3:10] == (
        "tf-parameter-server", "--nproc", "2", "--grace", "30", "--devices", "0,1,2,3",
    )  # fmt: skip
    assert (served.nproc_per_node, served.world_size) == (4, 4), "a chief and a parameter server as well"
    assert served.gpus == (0, 1)
    chosen = spec(strategy="tf-parameter-server", env={"CUDA_VISIBLE_DEVICES": "3,2"})
    assert resolve(home, chosen, gpus=4).argv[9] == "3,2"


@pytest.mark.parametrize("strategy", ["tf-mirrored", "tf-parameter-server"])
def test_tensorflow_on_several_hosts_is_refused(home: str, project: Path, strategy: str) -> None:
    nodes = tuple(wire.Node(name, name, "127.0.0.1", "lo") for name in ("a", "b"))
    placement = wire.Placement(nodes, 0, "127.0.0.1", ports.free_port(), "id")
    with pytest.raises(RunError, match=f"strategy {strategy} runs on one host, not on 2") as refusal:
        launch.resolve(home, spec(strategy=strategy), 1, placement, cores=8)
    assert refusal.value.code == "bad-spec"


def test_horovod_on_several_hosts_knows_the_first_one(home: str, project: Path) -> None:
    nodes = tuple(wire.Node(name, name, "127.0.0.1", "eth1") for name in ("a", "b"))
    placement = wire.Placement(nodes, 1, "10.0.0.1", 29500, "id")
    command = launch.resolve(home, spec(strategy="horovod"), 1, placement, cores=8)
    at = command.argv.index("--nodes")
    assert command.argv[at : at + 10] == (
        "--nodes", "2", "--node", "1", "--address", "10.0.0.1", "--port", "29500", "--interface", "eth1",
    )  # fmt: skip
    assert command.env["GLOO_SOCKET_IFNAME"] == "eth1"
    placement = wire.Placement(nodes, 1, "fd00::1", 29500, "id")
    with pytest.raises(RunError, match="rendezvous_address"):
        launch.resolve(home, spec(strategy="horovod"), 1, placement, cores=8)


@pytest.mark.parametrize(
    ("strategy", "target_kind", "needs", "wants"),
    [
        ("fsdp", "task", ("torch",), ("torch",)),
        ("zero2", "task", ("torch", "deepspeed"), ("torch", "deepspeed")),
        ("zero2", "script", ("torch",), ("torch", "deepspeed")),
        ("horovod", "task", ("torch", "horovod"), ("torch", "horovod")),
        ("horovod", "script", ("horovod",), ("torch", "horovod")),
        ("tf-mirrored", "task", ("tensorflow",), ("tensorflow",)),
        ("tf-mirrored", "script", (), ("tensorflow",)),
    ],
)
def test_what_a_python_needs(
    home: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    target_kind: str,
    needs: tuple[str, ...],
    wants: tuple[str, ...],
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(probe, "resolve", lambda *words: asked.append(words[3:5]) or TORCH)
    monkeypatch.setitem(launchers.LAUNCHERS, strategy, launchers.TORCHRUN)
    resolve(home, spec(strategy=strategy, target_kind=target_kind))
    assert asked == [(needs, wants)]
