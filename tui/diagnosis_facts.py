"""What a diagnosis says, in the words of the screens: pure functions from reports to text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.diagnosis import places
from agent.diagnosis.evidence import Frame, Rank
from agent.diagnosis.verdict import Diagnosis, Position, RankPart

from . import formatting as fmt
from .fleet import tracebacks
from .fleet.diagnosis import Report

SURENESS = ((0.95, "certain"), (0.8, "almost certain"), (0.6, "likely"), (0.35, "perhaps"), (0.0, "a guess"))
"""From which confidence on which word."""

PACKAGES = re.compile(r"\A.*/(?:site|dist)-packages/|\A.*/lib/python\d[\d.]*/|\A.*/[0-9a-f]{32,}/")
"""What in the file of a library says nothing."""

BLAMED = re.compile(r"\Aranks? (\d{1,5}(?:(?:, | and )\d{1,5})*)\b")
"""The ranks that a sentence begins with, as diagnoses write them."""


def sureness(confidence: float) -> str:
    """A confidence in words."""
    return next(word for least, word in SURENESS if confidence >= least)


def blamed(sentence: str) -> list[int]:
    """The ranks that the sentence of an alarm begins with; empty when it begins otherwise."""
    found = BLAMED.match(sentence)
    return [int(word) for word in re.findall(r"\d+", found[1])] if found is not None else []


def blamed_words(sentence: str) -> str:
    """`rank 3`, `ranks 3 and 5`; empty when the sentence names none at its beginning."""
    return ranks_words(blamed(sentence))


def collective(position: Position | None) -> str:
    """How far a rank is: collectives that are over / that it has called, and the name of the last one."""
    if position is None:
        return fmt.NONE
    return f"{position.completed}/{position.enqueued} {position.name.rpartition(':')[2]}".rstrip()


def where(part: RankPart | None, rank: Rank | None) -> str:
    """In which function of the user's own a rank is, or was when it failed: `load (train.py:12)`."""
    if rank is not None and rank.state in ("exited", "lost"):
        return _fell(rank)
    if part is None or not part.stack:
        return fmt.NONE
    return places.spot(places.user_frame(part.stack) or part.stack[0])


def _fell(rank: Rank) -> str:
    found = fmt.NONE
    for line in tracebacks.lines(rank.traceback) if rank.traceback else ():
        match = tracebacks.FRAME.match(line.text)
        if match is not None and (line.user_code or found == fmt.NONE):
            found = places.spot(Frame(match[1], int(match[2]), match[3], bool(line.user_code)))
    return found


def file_words(frame: Frame) -> str:
    """A frame's file and line, short: of a library its path in the library."""
    path = frame.file
    if frame.user_code:
        path = "/".join(path.rsplit("/", 2)[-2:]) if path.count("/") > 1 else path
    else:
        path = PACKAGES.sub("", path)
    return f"{path}:{frame.line}"


def rank_words(rank: Rank) -> str:
    """What was seen of a rank besides its stack, most telling first."""
    words = []
    if rank.state == "running" and rank.process_state:
        state = fmt.PROCESS_WORDS.get(rank.process_state, rank.process_state)
        asleep = rank.wait_channel and rank.process_state in "SD"
        words.append(f"{state} in {rank.wait_channel}" if asleep else state)
    elif rank.state != "running":
        words.append(fmt.rank_mark(rank.state, rank.exit_code).word)
    alive = rank.state == "running"
    if alive and rank.step_age is not None and rank.step_age >= 2:
        words.append(f"{fmt.span(rank.step_age)} without progress")
    if alive and rank.cpu_share is not None:
        words.append(f"CPU {fmt.percent(100 * rank.cpu_share)}")
    if rank.gil_free is False:
        words.append("GIL held")
    if alive and rank.phase:
        words.append(rank.phase)
    if rank.pid is not None:
        words.append(f"pid {rank.pid}")
    return " · ".join(words)


def findings(found: Diagnosis) -> list[tuple[str, str, str]]:
    """(who, where it was seen, what) of the evidence; of several ranks alike once, nothing said already."""
    told: dict[tuple[str, str], list[int]] = {}
    for finding in found.evidence:
        if finding.text in found.sentence and finding.rank in found.culprits:
            continue
        ranks = told.setdefault((finding.signal, finding.text), [])
        if finding.rank is not None:
            ranks.append(finding.rank)
    return [(ranks_words(ranks), signal, text) for (signal, text), ranks in told.items()]


def ranks_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 5`, of many `12 ranks`."""
    if len(ranks) > 4:
        return f"{len(ranks)} ranks"
    return "rank" + "s" * (len(ranks) > 1) + " " + fmt.listed([str(rank) for rank in ranks]) if ranks else ""


def order(report: Report, ranks: Sequence[int]) -> list[int]:
    """The ranks with those to blame on top; of a failure then those that failed by themselves."""
    failed = [rank.rank for rank in report.failed if not report.consequence(rank)]
    first = [rank for rank in dict.fromkeys([*report.diagnosis.culprits, *failed]) if rank in ranks]
    return [*first, *(rank for rank in ranks if rank not in set(first))]
