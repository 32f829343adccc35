"""The result of a cascade on examples whose classes are known: how often, how accurate, how many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.exits.byte_costs import Hop, link_bytes
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.thresholds import Flags


@dataclass(frozen=True)
class LevelReport:
    """The answers of one level."""

    level: str
    answered: int
    fraction: float
    accuracy: float | None
    """None without answers."""
    degraded: int
    sent_bytes: int
    """Bytes sent to the level above."""


def report_levels(
    levels: Sequence[str], answer: CascadeAnswer, correct: Flags, hops: Sequence[Hop]
) -> list[LevelReport]:
    """Return a report of each level. A level has sent a degraded answer's features up, too."""
    examples, numbers = len(correct), range(len(hops))
    escalated = [(answer.exits > number) | ((answer.exits == number) & answer.degraded) for number in numbers]
    reached = [examples, *(int(one.sum()) for one in escalated)]
    sent = [*link_bytes(hops, reached), 0]
    reports = []
    for number, level in enumerate(levels):
        own = answer.exits == number
        count = int(own.sum())
        accuracy = float(correct[own].mean()) if count else None
        degraded = int(answer.degraded[own].sum())
        reports.append(LevelReport(level, count, count / examples, accuracy, degraded, sent[number]))
    return reports
