"""The work that a node adds to its start version when it leaves its hub."""

from __future__ import annotations

import pytest

from shoal.core.failover.failover import MIXED_ROUNDS, HeldVersion, unacknowledged_report
from shoal.core.protocol.message import BlobRef, Report, TaskFailed

BODY = BlobRef("ab" * 32, 20)


def report(version: int = 3, weight: float = 2.0, metrics: dict[str, float] | None = None) -> Report:
    return Report("a", (1, 7), version, weight, BODY, metrics or {"train/loss": 0.5})


@pytest.mark.parametrize(
    ("said", "held", "base", "counts"),
    [
        (report(), 3, 3, True),
        (report(), 3, 4, False),
        (report(), 2, 3, False),
        (report(version=2), 3, 3, False),
        (report(version=0, weight=0.0, metrics={}), 0, 0, False),
        (report(metrics={MIXED_ROUNDS: 5.0}), 3, 3, False),
        (TaskFailed("a", (1, 7), "no data"), 3, 3, False),
        (None, 3, 3, False),
    ],
    ids=[
        "its last round",
        "the others are further",
        "it never held what it worked on",
        "an old one",
        "the first model",
        "what was handed back",
        "a failure",
        "nothing",
    ],
)
def test_only_work_that_no_version_holds(said: Report | TaskFailed | None, held: int, base: int, counts: bool) -> None:
    found = unacknowledged_report(said, HeldVersion(held, BODY), HeldVersion(base, BODY))
    assert found == (said if counts else None)
