"""What all tests share: the plugins that offer fixtures, and strictness about skips."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

pytest_plugins = ["second_try", "ssh.sshd", "lab.fixture", "training"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ENCAMP_TESTS_STRICT set, a test skipped for want of a tool is a failure: CI must have them all."""
    report = yield
    if report.skipped and os.environ.get("ENCAMP_TESTS_STRICT") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped although ENCAMP_TESTS_STRICT is set: {reason}"
    return report
