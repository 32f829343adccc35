"""Many rows in few statements: the same rows as one at a time."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, select
from sqlalchemy.exc import IntegrityError

from shoal_coordinator.storage.bulk_insert import PARAMETERS_MAX, BulkInsert
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import job_events, metadata, reports, traffic
from shoal_coordinator.telemetry.job_events import FeedRow, insert_items


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def row(seq: int, **changed: Any) -> dict[str, Any]:
    """A report's, of which everything is known but how long it took."""
    known = {
        "job": "j",
        "seq": seq,
        "node": f"n{seq}",
        "task": f"1.{seq}",
        "kind": "train",
        "version": seq,
        "round": None,
    }
    return {
        **known,
        "staleness": 0,
        "weight": 1.5,
        "norm": 0.0,
        "metrics": {"a": [seq, "ü"]},
        "now": 1,
        "at": 2.5,
        **changed,
    }


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65, 200])
def test_all_rows_are_written_as_they_are(connection: Connection, count: int) -> None:
    rows = [row(seq) for seq in range(count)]
    BulkInsert(insert(reports)).write(connection, rows)
    kept = connection.execute(select(reports).order_by(reports.c.id)).mappings().all()
    assert [{name: one[name] for name in row(0)} for one in kept] == rows
    assert all(one["seconds"] is None for one in kept)


def test_many_rows_are_few_statements_of_few_kinds(connection: Connection) -> None:
    said: list[tuple[str, int]] = []
    event.listen(
        connection, "before_cursor_execute", lambda c, k, text, given, x, many: said.append((text, len(given)))
    )
    bulk = BulkInsert(insert(reports))
    bulk.write(connection, [row(seq) for seq in range(511)])
    bulk.write(connection, [row(seq) for seq in range(600, 700)])
    assert len(said) < 20
    assert len({text for text, _ in said}) <= 7
    assert max(given for _, given in said) <= PARAMETERS_MAX


def test_feed_items_get_numbers_in_their_order_and_once(connection: Connection) -> None:
    rows = [FeedRow(7, part, 2.5, "metrics", {"number": part}) for part in range(7)]
    assert [item.data["number"] for item in insert_items(connection, "j", rows[2:4])] == [2, 3]
    found = insert_items(connection, "j", rows)
    assert [item.data["number"] for item in found] == [0, 1, 4, 5, 6]
    kept = connection.execute(select(job_events.c.id, job_events.c.part).order_by(job_events.c.id)).all()
    assert [part for _, part in kept] == [2, 3, 0, 1, 4, 5, 6]
    assert [item.id for item in found] == [number for number, _ in kept[2:]]


def test_a_conflict_is_solved_as_the_statement_says(connection: Connection) -> None:
    kept = BulkInsert(insert(reports).on_conflict_do_nothing())
    kept.write(connection, [row(1), row(2)])
    kept.write(connection, [row(seq, weight=9.0) for seq in (1, 2, 3)])
    assert connection.execute(select(reports.c.weight).order_by(reports.c.seq)).scalars().all() == [1.5, 1.5, 9.0]
    new = insert(traffic)
    grown = {"requests": traffic.c.requests + new.excluded.requests}
    added = BulkInsert(new.on_conflict_do_update(index_elements=list(traffic.primary_key.columns), set_=grown))
    names = [column.name for column in traffic.primary_key.columns]
    rows = [
        {**dict.fromkeys(names, "x"), "version": at, "requests": 2, "head_bytes": 1, "body_bytes": 1} for at in (1, 2)
    ]
    for _ in range(3):
        added.write(connection, rows)
    assert connection.execute(select(traffic.c.requests)).scalars().all() == [6, 6]


def test_one_wrong_row_is_said(connection: Connection) -> None:
    with pytest.raises(IntegrityError):
        BulkInsert(insert(reports)).write(connection, [row(1), row(2, node=None)])
    with pytest.raises(KeyError):
        BulkInsert(insert(reports)).write(connection, [row(1), {"seq": 2}])
