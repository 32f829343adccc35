"""Queries on a job's closed versions whose cost does not grow with their number.

Each version is one row, and a long job has many of them. What every round or every reader asks (the best version, the
newest measured one, the models to keep) is found by an index, never by reading all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, func, select

from shoal.core.metric import EVAL_NODES
from shoal_coordinator.tables import jobs, versions

_SHOWN_FROM = ("eval/accuracy", "held_out/accuracy")

CHUNK = 500
"""Digests that one statement looks up."""


@dataclass(frozen=True)
class Summary:
    """The facts about a job's versions that its view shows."""

    started_at: float | None = None
    """When the first version closed (s since 1970)."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Those of the newest version that has any."""
    best: tuple[float, int] | None = None
    """The best accuracy, and the first version that has it."""
    best_nodes: int | None = None
    """How many nodes measured that, each on its own data; None: it was measured on data that no node has."""


def accuracy_of(metrics: dict[str, Any]) -> float | None:
    """Return the accuracy that people look at first, if it is a number."""
    for name in _SHOWN_FROM:
        if isinstance(metrics.get(name), int | float):
            return float(metrics[name])
    return None


def nodes_behind(metrics: dict[str, Any]) -> int | None:
    """Return how many nodes measured the accuracy that people look at first; None: no node did, or it is not known."""
    if not isinstance(metrics.get(_SHOWN_FROM[0]), int | float) or EVAL_NODES not in metrics:
        return None
    return int(metrics[EVAL_NODES])


def scored(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a version that depend on its metrics."""
    return {"metrics": metrics, "score": accuracy_of(metrics), "measured": bool(metrics)}


def _first(column: Any) -> Any:
    """Return the value of a column in the first version of `jobs.name`."""
    return select(column).where(versions.c.job == jobs.c.name).order_by(versions.c.number).limit(1).scalar_subquery()


def _newest_metrics() -> Any:
    """Return the metrics of the newest version of `jobs.name` that has any."""
    query = select(versions.c.metrics).where(versions.c.job == jobs.c.name, versions.c.measured)
    return query.order_by(versions.c.number.desc()).limit(1).scalar_subquery()


def best_of(job: Any, column: Any) -> Select[Any]:
    """Return the query for a column of the best version; of several, the first.

    In two steps, each of which ends at the first entry of an index: there may be many equal scores.
    """
    other = versions.alias()
    top = select(func.max(other.c.score)).where(other.c.job == job).correlate(jobs).scalar_subquery()
    return select(column).where(versions.c.job == job, versions.c.score == top).order_by(versions.c.number).limit(1)


def summaries(names: Sequence[str]) -> Select[Any]:
    """Return the query for the summaries of jobs: one row for each job, found by lookups in indexes."""
    return select(
        jobs.c.name,
        _first(versions.c.closed_at).label("started_at"),
        _newest_metrics().label("metrics"),
        best_of(jobs.c.name, versions.c.number).scalar_subquery().label("best"),
        best_of(jobs.c.name, versions.c.score).scalar_subquery().label("score"),
        best_of(jobs.c.name, versions.c.metrics).scalar_subquery().label("best_metrics"),
    ).where(jobs.c.name.in_(names))


def summary(row: Any) -> Summary:
    """Return the summary that a row of `summaries` holds."""
    best, behind = None if row.best is None else (row.score, row.best), nodes_behind(row.best_metrics or {})
    return Summary(row.started_at, row.metrics or {}, best, behind)


def models_to_keep(connection: Connection, job: str, newest: int) -> set[str]:
    """Return the digests of the newest models of a job, of the best and of those that labels name."""
    mine = select(versions.c.digest).where(versions.c.job == job)
    recent = mine.order_by(versions.c.number.desc()).limit(newest)
    best = best_of(job, versions.c.digest)
    promoted = mine.where(versions.c.number.in_(labelled(connection, job)))
    return {digest for query in (recent, best, promoted) for digest in connection.execute(query).scalars()}


def labelled(connection: Connection, job: str) -> list[int]:
    """Return the versions that labels of a job name."""
    labels = connection.execute(select(jobs.c.labels).where(jobs.c.name == job)).scalar() or {}
    return sorted({kept["version"] for kept in labels.values()})


def models_among(connection: Connection, job: str, digests: Collection[str]) -> dict[int, str]:
    """Return those of the digests that are models of the job's versions, by the version's number."""
    wanted, found = sorted(digests), {}
    for place in range(0, len(wanted), CHUNK):
        these = versions.c.digest.in_(wanted[place : place + CHUNK])
        rows = connection.execute(select(versions.c.number, versions.c.digest).where(versions.c.job == job, these))
        found.update({row.number: row.digest for row in rows})
    return found


def numbers(connection: Connection, job: str) -> list[int]:
    """Return the numbers of all versions of a job that are kept."""
    query = select(versions.c.number).where(versions.c.job == job).order_by(versions.c.number)
    return list(connection.execute(query).scalars())
