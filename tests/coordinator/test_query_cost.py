"""The cost of a round, and of a look at the jobs, does not depend on how many rounds there were before.

Tables are filled as by a long job; then every statement of a round is run again alone, and the steps that SQLite's
virtual machine takes for it are counted.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from shoal_coordinator.models import version_history
from shoal_coordinator.storage.tables import jobs, metadata, versions
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, by_hand, set_up, task_of
from tests.support.waiting import until

JOB = "main"
GRAIN = 100
"""Steps between two calls of the counter."""

Statement = tuple[str, Any]


def lengthen(folder: Path, count: int) -> None:
    """Turn a job with version 1 into one with that many versions; each has its rows."""
    with contextlib.closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        seq, state = connection.execute("SELECT seq, state FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
        changed = json.dumps(json.loads(state) | {"version": count})
        connection.execute("UPDATE snapshots SET state = ? WHERE seq = ?", (changed, seq))
        connection.execute("UPDATE versions SET number = ? WHERE number = 1", (count,))
        metrics = [json.dumps({"eval/accuracy": n % 997 / 1000}) for n in range(count)]
        connection.executemany(
            "INSERT INTO versions (job, number, seq, digest, nbytes, why, opened_s, closed_s, closed_at, weight, asked,"
            " reports, metrics, score, has_metrics) VALUES (?, ?, 1, ?, 40, '', ?, ?, ?, 1, 2, '[]', ?, ?, 1)",
            ((JOB, n, f"{n:064x}", n - 1, n, n, metrics[n], n % 997 / 1000) for n in range(1, count)),
        )
        connection.executemany(
            "INSERT INTO traffic VALUES (?, ?, ?, 'task', ?, 1, 300, 200)",
            ((JOB, n, "n0", way) for n in range(2, count) for way in ("up", "down")),
        )


@contextlib.contextmanager
def recorded() -> Iterator[list[Statement]]:
    """All statements of this process that look for rows."""
    found: list[Statement] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) or " SELECT " in statement:
            found.extend((statement, one) for one in (parameters if many else [parameters]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def steps(folder: Path, statements: list[Statement]) -> Counter[str]:
    """The most steps that each statement took; nothing is changed."""
    found: Counter[str] = Counter()
    with contextlib.closing(sqlite3.connect(folder / "shoal.db", isolation_level=None)) as connection:
        for text, values in dict(statements).items():
            count = 0

            def more() -> None:
                nonlocal count
                count += GRAIN

            connection.execute("BEGIN")
            connection.set_progress_handler(more, GRAIN)
            connection.execute(text, values).fetchall()
            connection.set_progress_handler(None, 0)
            connection.execute("ROLLBACK")
            found[text] = max(found[text], count)
    return found


def rounds(stage: Stage, count: int) -> None:
    """Let both nodes take part in that many rounds."""
    for _ in range(count):
        number = stage.running.job(JOB)["version"]
        for node in stage.nodes[:2]:
            stage.tasks[node.node], _ = task_of(node, JOB)
            assert stage.report(node=node.node).status_code == 200
        until("the round to close", lambda number=number: stage.running.job(JOB)["version"] > number)


def look(running: Inside) -> None:
    """All that a dashboard that stays open asks for."""
    running.get("/jobs")
    running.get(f"/jobs/{JOB}")
    running.get(f"/jobs/{JOB}/models", limit=10)
    running.get(f"/jobs/{JOB}/models", limit=10, kept=True)


def costs(folder: Path, count: int) -> Counter[str]:
    """Return the cost of some rounds' statements in a job of that many versions."""
    with inside(folder) as running:
        stage = set_up(running, rounds=10**6)
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("the first version", lambda: running.job(JOB)["version"] == 1)
        for node in ("n0", "n1", "n2"):
            stage.dismiss(node)
        stage.close()
    lengthen(folder, count)
    with inside(folder) as running, recorded() as statements:
        stage = Stage(running, JOB, [by_hand(running, name, {JOB: 10}) for name in ("n3", "n4")])
        del statements[:]  # the cost of a start is another matter
        rounds(stage, 2)
        look(running)
        until("old models to go", lambda: len(running.runner(JOB).blobs.digests()) <= 3)
        stage.close()
    return steps(folder, statements)


def test_a_round_costs_as_much_after_100_000_versions_as_after_1_000(tmp_path: Path) -> None:
    few, many = (costs(tmp_path / str(count), count) for count in (1_000, 100_000))
    assert len(many) > 10
    grown = {text: (few[text], cost) for text, cost in many.items() if cost > 2 * few[text] + 5 * GRAIN}
    assert not grown


def test_the_best_version_of_each_job_is_its_own(tmp_path: Path) -> None:
    told = {
        "good": [{}, {"eval/accuracy": 0.5}, {"eval/accuracy": 0.9}, {"eval/accuracy": 0.9}, {"eval/loss": 0.1}, {}],
        "bad": [{"held_out/accuracy": 0.25}, {"eval/accuracy": "NaN"}],
        "unmeasured": [{}, {}],
        "new": [],
    }
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    common = {
        "seq": 1,
        "nbytes": 1,
        "why": "",
        "opened_s": 0.0,
        "closed_s": 0.0,
        "weight": 1.0,
        "asked": 1,
        "reports": [],
    }
    with engine.connect() as connection:
        for job, metrics in told.items():
            connection.execute(jobs.insert().values(name=job, spec={}, created_at=0.0))
            for n, one in enumerate(metrics):
                row = {
                    "job": job,
                    "number": n,
                    "digest": f"{job}{n}",
                    "closed_at": 10.0 + n,
                    **version_history.columns(one, True),
                }
                connection.execute(versions.insert().values(**common, **row))
        found = {
            row.name: version_history.summary(row) for row in connection.execute(version_history.summaries(list(told)))
        }
        kept = version_history.models_to_keep(connection, "good", 2)
    assert found == {
        "good": version_history.VersionSummary(10.0, {"eval/loss": 0.1}, 4, (0.9, 2)),
        "bad": version_history.VersionSummary(10.0, {"eval/accuracy": "NaN"}, 1, (0.25, 0)),
        "unmeasured": version_history.VersionSummary(10.0, {}, None),
        "new": version_history.VersionSummary(None, {}, None),
    }
    assert kept == {"good2", "good4", "good5"}


@pytest.mark.parametrize(
    ("metrics", "nodes"),
    [
        ({"eval/accuracy": 0.9, "eval/nodes": 1.0}, 1),
        ({"eval/accuracy": 0.9, "eval/nodes": 3.0, "held_out/accuracy": 0.8}, None),
        ({"held_out/accuracy": 0.9, "eval/nodes": 1.0}, None),
        ({"eval/accuracy": 0.9}, None),
    ],
)
def test_the_best_says_how_many_nodes_measured_it(metrics: dict[str, float], nodes: int | None) -> None:
    assert version_history.nodes_measured(metrics) == nodes
