"""The bank under pytest: the right verdict, culprit and place, in time, and silence where nothing is wrong.

A few of the scenarios are part of the quick suite, `make stalls` plays all of them.
"""

from __future__ import annotations

import pytest
from e2e.stalls.bank import NotPossible, play
from e2e.stalls.scenarios import SCENARIOS, Scenario

from agent.diagnosis import VERDICTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
pytest.importorskip("torch")


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=name, marks=() if scenario.quick else pytest.mark.stalls)
        for name, scenario in SCENARIOS.items()
    ],
)
def test_what_is_said(scenario: Scenario) -> None:
    if scenario.name.startswith("zero"):
        pytest.importorskip("deepspeed")
    try:
        outcome = play(scenario)
    except NotPossible as reason:
        pytest.skip(str(reason))
    assert outcome.ok, outcome.line()


def test_the_bank_is_as_large_as_promised() -> None:
    assert sum(not scenario.healthy for scenario in SCENARIOS.values()) >= 30
    assert sum(scenario.healthy for scenario in SCENARIOS.values()) >= 10
    assert {verdict for scenario in SCENARIOS.values() for verdict in scenario.verdicts} <= set(VERDICTS)
