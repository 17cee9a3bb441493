"""A plugin for `tries.py`: it writes down what passed, and leaves that out of the next try.

With ENCAMP_TESTS_RECORD=FILE each test adds a line to FILE: its outcome and its name. With
ENCAMP_TESTS_LEAVE_OUT=FILE the tests that passed according to FILE are left out.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

RECORD, LEAVE_OUT = "ENCAMP_TESTS_RECORD", "ENCAMP_TESTS_LEAVE_OUT"
PASSED, FAILED, FINAL = "passed", "failed", "final"
WRONG = "WRONG: "
"""How the message of a failure begins that no second try may hide: a wrong name was said."""


def outcomes(file: Path) -> dict[str, str]:
    """The tests of a record by name: the worst of each."""
    found: dict[str, str] = {}
    for line in file.read_text().splitlines():
        outcome, _, name = line.partition(" ")
        if found.get(name, PASSED) == PASSED:
            found[name] = outcome
    return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test ended; in the process that hears of all of them."""
    file = os.environ.get(RECORD)
    if not file or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.failed:
        outcome = FINAL if WRONG in report.longreprtext else FAILED
    elif report.when == "teardown":
        outcome = PASSED
    else:
        return
    with Path(file).open("a") as record:
        record.write(f"{outcome} {report.nodeid}\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed before."""
    file = os.environ.get(LEAVE_OUT)
    if not file:
        return
    known = outcomes(Path(file))
    done = [item for item in items if known.get(item.nodeid) == PASSED]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if known.get(item.nodeid) != PASSED]


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A failed test may show half a surrogate pair, which is no UTF-8: pytest-xdist would end the run."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_sendable(each) for each in value)
    return value
