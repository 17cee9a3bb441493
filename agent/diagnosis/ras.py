"""What is wrong in NCCL's own report of its ranks, in one line: see `..signals.ras` for where it is from."""

from __future__ import annotations

import re

MAX_TEXT = 600

SECTION = re.compile(r"(Errors|Warnings)\s*\Z")
RULE = re.compile(r"\s*=+\s*\Z")


def trouble(report: str) -> str:
    """What stands under Errors and Warnings, errors first as there; empty where that is nothing."""
    found, inside = [], False
    lines = report.splitlines()
    for number, line in enumerate(lines):
        heading = number + 1 < len(lines) and RULE.match(lines[number + 1]) is not None
        if heading:
            inside = SECTION.match(line) is not None
        elif inside and line.strip() and not RULE.match(line):
            found.append(line.strip())
    text = "; ".join(found)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
