"""`python -m tests.e2e.stalls [--jobs N] [NAME...]`: run scenarios, or all, and print the table.

The project's goals are held against it: at most `MEDIAN_SECONDS` from the stall to the verdict in the
median and `STALL_SECONDS` at worst, a few scenarios that allow themselves more apart; no false alarm. Times
count on a machine that does nothing else, with one or two at a time. Exits 1 when something is wrong or late.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import sys
import threading
from collections.abc import Iterable

from .bank import HEADER, House, NotPossible, Outcome, house
from .scenarios import MEDIAN_SECONDS, SCENARIOS, STALL_SECONDS, Scenario

Said = Outcome | BaseException | str | None
"""What comes of a scenario, why it is not possible, or None: a player has no more to do."""


def main(words: list[str]) -> int:
    """Run the named scenarios; a name that ends in `*` means all that begin so."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.stalls")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="play so many at a time")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a scenario, or PREFIX*; all without any")
    options = parser.parse_args(words)
    chosen = [scenario for scenario in SCENARIOS.values() if _wanted(scenario.name, options.names)]
    if not chosen:
        print(f"there is no such scenario; there are: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    print(HEADER, flush=True)
    outcomes = []
    for said in _played(chosen, max(1, options.jobs)):
        print(said if isinstance(said, str) else said.line(), flush=True)
        if isinstance(said, Outcome):
            outcomes.append(said)
    return 0 if _held(outcomes) else 1


def _wanted(name: str, names: list[str]) -> bool:
    return not names or any(
        name == wanted or (wanted.endswith("*") and name.startswith(wanted[:-1])) for wanted in names
    )


def _played(scenarios: list[Scenario], jobs: int) -> Iterable[Outcome | str]:
    """Play them on `jobs` hosts at a time, and give what comes of each as it comes."""
    waiting: queue.SimpleQueue[Scenario] = queue.SimpleQueue()
    for scenario in scenarios:
        waiting.put(scenario)
    said: queue.SimpleQueue[Said] = queue.SimpleQueue()

    def work() -> None:
        try:
            with house() as home:
                while True:
                    said.put(_play(home, waiting.get_nowait()))
        except queue.Empty:
            said.put(None)
        except BaseException as error:  # told by the main thread
            said.put(error)

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    while jobs:
        found = said.get()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            jobs -= 1
        else:
            yield found


def _play(home: House, scenario: Scenario) -> Outcome | str:
    try:
        return home.play(scenario)
    except NotPossible as reason:
        return f"{scenario.name:22} not possible here: {reason}"


def _held(outcomes: list[Outcome]) -> bool:
    """Print whether the goals are met, and say so."""
    wrong = [outcome for outcome in outcomes if not outcome.ok]
    late = [outcome.scenario.name for outcome in outcomes if outcome.ok and outcome.late]
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} right")
    times = [outcome.seconds for outcome in outcomes if outcome.ok and outcome.scenario.timed]
    seconds = [found for found in times if found is not None]
    held = not wrong and not late
    if seconds:
        median, worst = statistics.median(seconds), max(seconds)
        in_time = median <= MEDIAN_SECONDS and worst <= STALL_SECONDS
        held = held and in_time
        print(
            f"seconds from stall to verdict: median {median:.1f} (at most {MEDIAN_SECONDS:g}), "
            f"worst {worst:.1f} (at most {STALL_SECONDS:g}): {'held' if in_time else 'NOT HELD'}"
        )
    silent = [outcome for outcome in outcomes if outcome.scenario.healthy]
    alarms = sum(not outcome.ok for outcome in silent)
    print(f"healthy: {len(silent)} played, {alarms} of them not taken for that")
    if late:
        print(f"late: {', '.join(late)}")
    return held


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
