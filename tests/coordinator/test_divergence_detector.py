"""Detection of concept drift from the rate of synchronizations and from losses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, select

from shoal.core.protocol.machine import ModelVersion, Save, Timer
from shoal.core.protocol.message import BlobRef
from shoal_coordinator.jobs import journal
from shoal_coordinator.jobs.journal import AppliedEntry, JournalEntry
from shoal_coordinator.storage.tables import jobs, metadata, versions
from shoal_coordinator.telemetry.divergence_detector import (
    BY_LOSS,
    DRIFT_FACTOR,
    FACTOR,
    SINCE,
    WINDOW,
    Closed,
    loss_rise,
    rate_rise,
)

QUIET_S = [1.0] * WINDOW
"""As long as each of the synchronizations of a window took."""


def spans(seconds: list[float], delta: float = 0.5) -> list[Closed]:
    return [Closed(one, delta) for one in seconds]


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([*QUIET_S, *QUIET_S], None),
        ([*QUIET_S, *[0.5] * WINDOW], None),
        ([*QUIET_S, *[0.25] * WINDOW], 4.0),
        ([*[0.25] * WINDOW, *QUIET_S], None),  # learning: they become rarer
        ([*QUIET_S, *[0.25] * (WINDOW - 1)], None),  # too few to tell
        ([0.01] * WINDOW + [*QUIET_S, *[0.25] * WINDOW], 4.0),  # earlier values do not matter
    ],
)
def test_a_higher_rate_of_synchronizations_is_detected(seconds: list[float], found: float | None) -> None:
    assert rate_rise(spans(seconds)) == found


def test_the_rate_is_detected_from_the_factor_on() -> None:
    assert rate_rise(spans([*QUIET_S, *[1 / FACTOR] * WINDOW])) == pytest.approx(FACTOR)


def test_a_lower_threshold_explains_a_higher_rate() -> None:
    faster = [0.1] * WINDOW
    assert rate_rise([*spans(QUIET_S, 0.5), *spans(faster, 0.4)]) is None
    assert rate_rise([*spans(QUIET_S, 0.5), *spans(faster, 0.6)]) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([0.2] * WINDOW + [0.2] * 3, None),
        ([0.2] * WINDOW + [0.9] * 3, 4.5),
        ([0.2] * WINDOW + [0.9] * 2, None),  # too few to tell
        ([0.2] * WINDOW + [0.9, 0.29, 0.9], None),  # no more than it varies
        ([0.6, *[0.2] * (WINDOW - 1), *[0.8] * 3], None),  # as high as that it was before
        ([2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2], None),  # learning
        ([-0.2] * WINDOW + [-0.1] * 3, None),  # below zero a ratio says nothing
    ],
)
def test_a_higher_loss_is_detected(losses: list[float], found: float | None) -> None:
    assert loss_rise(losses) == (None if found is None else pytest.approx(found))


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.begin() as opened:
        opened.execute(jobs.insert(), {"name": "stream", "spec": {}, "created_at": 0.0})
        yield opened
    engine.dispose()


def history(seconds: list[float], **numbers: float) -> list[AppliedEntry]:
    """Versions that took `seconds`, as the driver has them for the journal."""
    ends = list(accumulate(seconds, initial=0.0))
    made = [ModelVersion(0, BlobRef("0" * 64, 8), "initial model", 0.0, 0.0, numbers=numbers)]
    for number, (opened, closed) in enumerate(pairwise(ends), start=1):
        made.append(ModelVersion(number, BlobRef("0" * 64, 8), "full synchronization", opened, closed, numbers=numbers))
    return [
        AppliedEntry(JournalEntry(n, v.closed_s, v.closed_s, Timer()), [Save(v)], None)
        for n, v in enumerate(made, start=1)
    ]


def warnings(items: list[Any]) -> list[str]:
    return [item.data["text"] for item in items if item.topic == "job_event" and item.data["kind"] == "warning"]


def test_a_divergence_is_reported_and_marked_once(connection: Connection) -> None:
    fed = history([*QUIET_S, *QUIET_S, *[0.05] * WINDOW], delta=1)
    told = warnings(journal.project_effects(connection, "stream", fed))
    assert len(told) == 1
    assert "2.7 times as fast since version 10" in told[0]  # 6 s before; then 2 of 1 s and 4 of 0.05 s
    rows = connection.execute(select(versions.c.number, versions.c.numbers).order_by(versions.c.number)).all()
    marked = {row.number: row.numbers for row in rows if DRIFT_FACTOR in row.numbers}
    assert marked == {16: {"delta": 1, DRIFT_FACTOR: pytest.approx(6 / 2.2), SINCE: 10}}


def test_a_divergence_is_not_reported_again_after_a_crash(connection: Connection) -> None:
    fed = history([*QUIET_S, *[0.1] * WINDOW], delta=0.5)
    assert len(warnings(journal.project_effects(connection, "stream", fed))) == 1
    assert journal.project_effects(connection, "stream", fed) == []


def test_the_next_divergence_is_reported_again(connection: Connection) -> None:
    calm, storm = [1.0] * 2 * WINDOW, [0.1] * WINDOW
    fed = history([*calm, *storm, *calm, *storm], delta=0.5)
    assert len(warnings(journal.project_effects(connection, "stream", fed))) == 2


def test_a_rising_loss_is_reported_at_an_unchanged_rate(connection: Connection) -> None:
    """Metrics of a version come after it has closed: so each mark is found at a later one."""
    told = []
    for number, fed in enumerate(history([1.0] * 24, delta=0.5)):
        told += warnings(journal.project_effects(connection, "stream", [fed]))
        loss = 0.1 if number < 12 else 1.2
        journal.merge_metrics(connection, "stream", number, {"eval/accuracy": 0.9, "train/loss": loss})
    assert told == ["train/loss is 12.0 times as high since version 12: the data seem to have changed"]
    rows = connection.execute(select(versions.c.number, versions.c.numbers).order_by(versions.c.number)).all()
    marked = {row.number: row.numbers for row in rows if DRIFT_FACTOR in row.numbers}
    assert marked == {15: {"delta": 0.5, DRIFT_FACTOR: pytest.approx(12.0), SINCE: 12, BY_LOSS: 1.0}}


def test_a_rising_loss_is_reported_where_few_versions_are_measured(connection: Connection) -> None:
    told = []
    for number, fed in enumerate(history([1.0] * 60, delta=0.5)):
        told += warnings(journal.project_effects(connection, "stream", [fed]))
        if number % 4 == 0:
            loss = 0.44 if number < 40 else 2.03
            journal.merge_metrics(connection, "stream", number, {"eval/loss": loss})
    assert told == ["eval/loss is 4.6 times as high since version 40: the data seem to have changed"]


def test_jobs_with_rounds_are_not_watched(connection: Connection) -> None:
    assert warnings(journal.project_effects(connection, "stream", history([*QUIET_S, *[0.1] * WINDOW]))) == []
