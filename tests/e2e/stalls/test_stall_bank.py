"""The bank under pytest: the right verdict, culprit and place, and silence where nothing is wrong.

A few of the scenarios are part of the quick suite, `make stalls` plays all of them, several at a time. How
soon something is said is therefore only held to a loose bound; `python -m tests.e2e.stalls` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.stalls.bank import House, NotPossible, house
from e2e.stalls.scenarios import SCENARIOS, Scenario

from agent.diagnosis import VERDICTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
pytest.importorskip("torch")

LATENESS = 3.0
"""So many times longer than on a machine that does nothing else it may take until something is said."""


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """The host on which this worker's scenarios are played."""
    with house() as made:
        yield made


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=name, marks=() if scenario.quick else pytest.mark.stalls)
        # The healthy ones take longest: at the end they would leave the other workers idle.
        for name, scenario in sorted(SCENARIOS.items(), key=lambda item: not item[1].healthy)
    ],
)
def test_what_is_said(scenario: Scenario, home: House) -> None:
    if scenario.name.startswith("zero"):
        pytest.importorskip("deepspeed")
    try:
        outcome = home.play(scenario)
    except NotPossible as reason:
        pytest.skip(str(reason))
    assert outcome.ok, outcome.line()
    assert (outcome.seconds or 0.0) <= LATENESS * scenario.seconds, outcome.line()


def test_the_bank_is_as_large_as_promised() -> None:
    assert sum(not scenario.healthy for scenario in SCENARIOS.values()) >= 30
    assert sum(scenario.healthy for scenario in SCENARIOS.values()) >= 10
    assert {verdict for scenario in SCENARIOS.values() for verdict in scenario.verdicts} <= set(VERDICTS)
