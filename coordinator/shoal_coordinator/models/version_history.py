"""Queries on a job's closed versions whose cost does not grow with their number.

Each version is one row, and a long job has many of them. What every round or every reader asks (the best version, the
newest measured one, the models to keep) is found by an index, never by reading all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, func, select, update

from shoal.core.metric import EVAL_ASKED, EVAL_NODES
from shoal_coordinator.tables import jobs, versions

HELD_OUT = "held_out/accuracy"
"""Measured by the coordinator alone, always on the same data: where there is one, it is the accuracy of a version."""
_SHOWN_FROM = (HELD_OUT, "eval/accuracy")

CHUNK = 500
"""Digests that one statement looks up."""


@dataclass(frozen=True)
class Summary:
    """The facts about a job's versions that its view shows."""

    started_at: float | None = None
    """When the first version closed (s since 1970)."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Those of the newest version that has any."""
    measured: int | None = None
    """That version."""
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
    if _is_number(metrics.get(HELD_OUT)) or not _is_number(metrics.get(_SHOWN_FROM[1])) or EVAL_NODES not in metrics:
        return None
    return int(metrics[EVAL_NODES])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def asked(metrics: dict[str, Any]) -> int | None:
    """Return how many nodes the "eval/…" should rest on, where versions are made of a few reports each."""
    return int(metrics[EVAL_ASKED]) if _is_number(metrics.get(EVAL_ASKED)) else None


def is_part(metrics: dict[str, Any]) -> bool:
    """Return whether the accuracy rests on half of the nodes that were at work, or fewer: on some by chance."""
    of = asked(metrics)
    return of is not None and 2 * (nodes_behind(metrics) or 0) <= of and not _is_number(metrics.get(HELD_OUT))


def columns(metrics: dict[str, Any], complete: bool) -> dict[str, Any]:
    """Return the columns of a version that depend on its metrics; `complete`: no node that was asked will add to them.

    A version is a candidate for the best once its accuracy does not rest on whoever was first any more.
    """
    final = _is_number(metrics.get(HELD_OUT)) or (complete and not is_part(metrics))
    return {"metrics": metrics, "score": accuracy_of(metrics) if final else None, "measured": bool(metrics)}


def complete(connection: Connection, job: str, before: int | None = None) -> None:
    """Let the accuracy of the newest version (before `before`) count: its round has closed, or the job has ended."""
    mine = (versions.c.job == job, *(() if before is None else (versions.c.number < before,)))
    newest = select(versions.c.number, versions.c.metrics).where(*mine).order_by(versions.c.number.desc()).limit(1)
    row = connection.execute(newest).first()
    if row is not None and row.metrics:
        here = (versions.c.job == job, versions.c.number == row.number)
        connection.execute(update(versions).where(*here).values(columns(row.metrics, complete=True)))


def _first(column: Any) -> Any:
    """Return the value of a column in the first version of `jobs.name`."""
    return select(column).where(versions.c.job == jobs.c.name).order_by(versions.c.number).limit(1).scalar_subquery()


def _newest_measured(column: Any) -> Any:
    """Return a column of the newest version of `jobs.name` that has metrics."""
    query = select(column).where(versions.c.job == jobs.c.name, versions.c.measured)
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
        _newest_measured(versions.c.metrics).label("metrics"),
        _newest_measured(versions.c.number).label("measured"),
        best_of(jobs.c.name, versions.c.number).scalar_subquery().label("best"),
        best_of(jobs.c.name, versions.c.score).scalar_subquery().label("score"),
        best_of(jobs.c.name, versions.c.metrics).scalar_subquery().label("best_metrics"),
    ).where(jobs.c.name.in_(names))


def summary(row: Any) -> Summary:
    """Return the summary that a row of `summaries` holds."""
    best, behind = None if row.best is None else (row.score, row.best), nodes_behind(row.best_metrics or {})
    return Summary(row.started_at, row.metrics or {}, row.measured, best, behind)


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
