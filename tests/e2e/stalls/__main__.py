"""`python -m tests.e2e.stalls [NAME...]`: run scenarios, or all, and print the table.

Exits 1 when one of them is wrong.
"""

from __future__ import annotations

import statistics
import sys

from .bank import HEADER, NotPossible, Outcome, play
from .scenarios import SCENARIOS


def main(names: list[str]) -> int:
    """Run the named scenarios one after the other; a name that ends in `*` means all that begin so."""
    chosen = [
        scenario
        for scenario in SCENARIOS.values()
        if not names
        or any(
            scenario.name == name or (name.endswith("*") and scenario.name.startswith(name[:-1]))
            for name in names
        )
    ]
    if not chosen:
        print(f"there is no such scenario; there are: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    print(HEADER, flush=True)
    outcomes: list[Outcome] = []
    for scenario in chosen:
        try:
            outcomes.append(play(scenario))
        except NotPossible as reason:
            print(f"{scenario.name:22} not possible here: {reason}", flush=True)
            continue
        print(outcomes[-1].line(), flush=True)
    _summary(outcomes)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _summary(outcomes: list[Outcome]) -> None:
    right = [outcome for outcome in outcomes if outcome.ok]
    times = [outcome.seconds for outcome in right if outcome.seconds and not outcome.scenario.healthy]
    print(f"{len(right)} of {len(outcomes)} right", end="")
    if times:
        print(
            f"; seconds to the verdict: median {statistics.median(times):.1f}, worst {max(times):.1f}", end=""
        )
    print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
