"""Jobs: those that keep the contract, and what is said about those that do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer import contract, strategies
from trainer.errors import JobError, UsageError

GOOD = """
def build_model(cfg): ...
def build_dataset(cfg, split): ...
def loss(output, batch): ...
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def load(tmp_path: Path, text: str) -> contract.Task:
    path = tmp_path / "job.py"
    path.write_text(text)
    return contract.load(str(path))


def test_a_job_may_leave_out_all_but_three_functions(tmp_path: Path) -> None:
    task = load(tmp_path, GOOD)
    assert task.build_optimizer is task.evaluate is task.collate is None
    assert task.forward is contract.default_forward
    assert (task.blocks, task.tp_plan) == ((), {})


def test_a_job_may_bring_everything(tmp_path: Path) -> None:
    task = load(
        tmp_path,
        GOOD
        + """
def forward(model, batch, extra=None): return "forward"
def build_optimizer(model, cfg): return "optimizer"
def evaluate(*args): return {"accuracy": (1, 2)}
collate = list
BLOCKS = ["layers"]
TP_PLAN = {"layers.*.up": "colwise"}
""",
    )
    assert task.forward(None, None) == "forward"
    assert task.build_optimizer and task.build_optimizer(None, None) == "optimizer"
    assert task.evaluate and task.evaluate(None, None) == {"accuracy": (1, 2)}
    assert task.collate is list
    assert (task.blocks, task.tp_plan) == (("layers",), {"layers.*.up": "colwise"})


def test_the_default_forward_keeps_the_target_from_the_model() -> None:
    def model(*inputs: int) -> tuple[int, ...]:
        return inputs

    assert contract.default_forward(model, (1, 2, 3)) == (1, 2)
    assert contract.default_forward(model, [1, 2]) == (1,)
    assert contract.default_forward(model, 1) == (1,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            [
                "build_model(cfg) is missing",
                "build_dataset(cfg, split) is missing",
                "loss(output, batch) is missing",
            ],
        ),
        (GOOD + "loss = 3", ["loss is not a function; it must be loss(output, batch)"]),
        (GOOD + "def build_model(): ...", ["build_model cannot be called as build_model(cfg)"]),
        (GOOD + "def loss(output, batch, *, more): ...", ["loss cannot be called as loss(output, batch)"]),
        (GOOD + "def forward(batch): ...", ["forward cannot be called as forward(model, batch)"]),
        (GOOD + "BLOCKS = 'layers'", ["BLOCKS is not a list of names"]),
        (GOOD + "TP_PLAN = {'a': 'sideways'}", ["TP_PLAN is not a dictionary"]),
    ],
)
def test_a_broken_contract_is_told_with_the_smallest_job(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(JobError) as caught:
        load(tmp_path, text)
    first, _, rest = str(caught.value).partition("\n")
    assert first.startswith(f"job {tmp_path}/job.py: ")
    for words in said:
        assert words in first
    assert first.count(";") >= len(said) - 1
    assert rest == contract.SMALLEST


def test_a_job_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_job.py").write_text("VALUE = ('a', 'b')")
    assert load(tmp_path, GOOD + "from neighbour_of_job import VALUE as BLOCKS").blocks == ("a", "b")


def test_a_file_that_is_no_python_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"job\.py, line 6: .*\n    def loss\(output batch\):"):
        load(tmp_path, GOOD + "\ndef loss(output batch):\n    ...")
    (tmp_path / "neighbour_with_a_slip.py").write_text("x = (")
    with pytest.raises(JobError, match=r"neighbour_with_a_slip\.py, line 1: "):
        load(tmp_path, "import neighbour_with_a_slip")


def test_a_missing_package_is_named_with_the_way_to_it(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(tmp_path, "import sys\nimport no_such_package.sub\n")
    said = str(caught.value)
    assert f"{tmp_path}/job.py, line 2, imports no_such_package, which" in said
    assert 'packages = ["no_such_package"] in [env_setup]' in said
    (tmp_path / "neighbour_that_imports.py").write_text("\n\nfrom no_such_package import x")
    with pytest.raises(JobError, match=r"neighbour_that_imports\.py, line 3, imports no_such_package"):
        load(tmp_path, "import neighbour_that_imports")


@pytest.mark.parametrize("value", ["3", "[('a', 1)]", "{'a': 1}", "{3: (1, 2)}", "{'a': (1, 2, 3)}"])
def test_an_evaluation_returns_sums_and_counts(tmp_path: Path, value: str) -> None:
    task = load(tmp_path, GOOD + f"def evaluate(output, batch): return {value}")
    assert task.evaluate
    with pytest.raises(JobError, match=r"evaluate\(output, batch\) must return sums and counts by name"):
        task.evaluate(None, None)


def test_faults_of_the_jobs_own_code_pass_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load(tmp_path, "1 / 0")


def test_jobs_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--task gtp: no such task; did you mean gpt\?"):
        contract.load("gtp")
    with pytest.raises(UsageError, match=r"there are gpt, images, regression; a file's name ends in \.py"):
        contract.load("zzz")
    with pytest.raises(UsageError, match="no such file in"):
        contract.load("nowhere/job.py")


def test_strategies_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match=r"--strategy DDP: no such strategy; did you mean ddp or"):
        strategies.find("DDP")
    with pytest.raises(UsageError, match="there are ddp"):
        strategies.find("horses")
