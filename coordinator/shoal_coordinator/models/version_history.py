"""Queries on a job's closed versions whose cost does not grow with their number.

Each version is one row, and a long job has many of them. Frequent questions (the best version, the newest measured one,
the models to keep) use an index, and never read all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, func, select, update

from shoal.core.protocol.metrics import EVAL_ASKED, EVAL_NODES
from shoal.jobs.spec import is_checkpoint
from shoal_coordinator.storage.tables import jobs, versions

HELD_OUT = "held_out/accuracy"
"""Measured by the coordinator alone, always on the same data: where there is one, it is the accuracy of a version."""
_SHOWN_FROM = (HELD_OUT, "eval/accuracy")

CHUNK = 500
"""Digests that one statement looks up."""

# Made once: to build one of these takes longer than to execute it.
_JOB: BindParameter[str] = bindparam("of_job")
_BEFORE: BindParameter[int] = bindparam("of_before")
_OF_JOB = select(versions.c.number, versions.c.metrics).where(versions.c.job == _JOB)
_NEWEST = _OF_JOB.order_by(versions.c.number.desc()).limit(1)
_NEWEST_BEFORE = _OF_JOB.where(versions.c.number < _BEFORE).order_by(versions.c.number.desc()).limit(1)
_COMPLETE = (
    update(versions)
    .where(versions.c.job == _JOB, versions.c.number == bindparam("of_number"))
    .values({name: bindparam(f"new_{name}") for name in ("metrics", "score", "has_metrics")})
)
_DIGESTS = select(versions.c.digest).where(versions.c.job == _JOB)
_RECENT = _DIGESTS.order_by(versions.c.number.desc()).limit(bindparam("most"))
_LABELS = select(jobs.c.labels).where(jobs.c.name == _JOB)
_CHECKPOINT_EVERY = select(jobs.c.spec["checkpoint_every"].as_integer()).where(jobs.c.name == _JOB)


@dataclass(frozen=True)
class VersionSummary:
    """The facts about a job's versions that its view shows."""

    started_at: float | None = None
    """Time of the first closed version (s since 1970)."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Those of the newest version that has any."""
    metrics_version: int | None = None
    """That version."""
    best: tuple[float, int] | None = None
    """The best accuracy, and the first version that has it."""
    best_nodes: int | None = None
    """Number of nodes that measured it, each on its own data; None: it was measured on held-out data."""


def accuracy_of(metrics: dict[str, Any]) -> float | None:
    """Return the accuracy that people look at first, if it is a number."""
    for name in _SHOWN_FROM:
        if isinstance(metrics.get(name), int | float):
            return float(metrics[name])
    return None


def nodes_measured(metrics: dict[str, Any]) -> int | None:
    """Return how many nodes measured the accuracy that people look at first; None: no node did, or it is not known."""
    if _is_number(metrics.get(HELD_OUT)) or not _is_number(metrics.get(_SHOWN_FROM[1])) or EVAL_NODES not in metrics:
        return None
    return int(metrics[EVAL_NODES])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def nodes_asked(metrics: dict[str, Any]) -> int | None:
    """Return how many nodes the "eval/…" should rest on, where versions are made of a few reports each."""
    return int(metrics[EVAL_ASKED]) if _is_number(metrics.get(EVAL_ASKED)) else None


def is_partial(metrics: dict[str, Any]) -> bool:
    """Return whether the accuracy rests on half of the nodes that were at work, or fewer: on some by chance."""
    of = nodes_asked(metrics)
    return of is not None and 2 * (nodes_measured(metrics) or 0) <= of and not _is_number(metrics.get(HELD_OUT))


def columns(metrics: dict[str, Any], complete: bool) -> dict[str, Any]:
    """Return the columns of a version that depend on its metrics; `complete`: no node that was asked will add to them.

    A version is a candidate for the best once its accuracy does not rest on the first nodes alone.
    """
    final = _is_number(metrics.get(HELD_OUT)) or (complete and not is_partial(metrics))
    return {"metrics": metrics, "score": accuracy_of(metrics) if final else None, "has_metrics": bool(metrics)}


def mark_complete(connection: Connection, job: str, before: int | None = None) -> None:
    """Let the accuracy of the newest version (before `before`) count: its round has closed, or the job has ended."""
    newest = _NEWEST if before is None else _NEWEST_BEFORE
    row = connection.execute(newest, {"of_job": job, "of_before": before}).first()
    if row is not None and row.metrics:
        values = {f"new_{name}": value for name, value in columns(row.metrics, complete=True).items()}
        connection.execute(_COMPLETE, {"of_job": job, "of_number": row.number, **values})


def _first(column: Any) -> Any:
    """Return the value of a column in the first version of `jobs.name`."""
    return select(column).where(versions.c.job == jobs.c.name).order_by(versions.c.number).limit(1).scalar_subquery()


def _newest_measured(column: Any) -> Any:
    """Return a column of the newest version of `jobs.name` that has metrics."""
    query = select(column).where(versions.c.job == jobs.c.name, versions.c.has_metrics)
    return query.order_by(versions.c.number.desc()).limit(1).scalar_subquery()


def best_of(job: Any, column: Any) -> Select[Any]:
    """Return the query for a column of the best version, the first one if several are equal.

    In two steps, each of which ends at the first entry of an index: there may be many equal scores.
    """
    other = versions.alias()
    top = select(func.max(other.c.score)).where(other.c.job == job).correlate(jobs).scalar_subquery()
    return select(column).where(versions.c.job == job, versions.c.score == top).order_by(versions.c.number).limit(1)


_BEST = best_of(_JOB, versions.c.digest)
_SUMMARIES = select(
    jobs.c.name,
    _first(versions.c.closed_at).label("started_at"),
    _newest_measured(versions.c.metrics).label("metrics"),
    _newest_measured(versions.c.number).label("metrics_version"),
    best_of(jobs.c.name, versions.c.number).scalar_subquery().label("best"),
    best_of(jobs.c.name, versions.c.score).scalar_subquery().label("score"),
    best_of(jobs.c.name, versions.c.metrics).scalar_subquery().label("best_metrics"),
)


def summaries(names: Sequence[str]) -> Select[Any]:
    """Return the query for the summaries of jobs: one row for each job, found by lookups in indexes."""
    return _SUMMARIES.where(jobs.c.name.in_(names))


def summary(row: Any) -> VersionSummary:
    """Return the summary that a row of `summaries` holds."""
    best, behind = None if row.best is None else (row.score, row.best), nodes_measured(row.best_metrics or {})
    return VersionSummary(row.started_at, row.metrics or {}, row.metrics_version, best, behind)


def models_to_keep(connection: Connection, job: str, newest: int) -> set[str]:
    """Return the digests of the newest models of a job, of the best and of those that labels name."""
    here = {"of_job": job}
    found = [
        connection.execute(_RECENT, {**here, "most": newest}).scalars().all(),
        connection.execute(_BEST, here).scalars().all(),
    ]
    if numbers := labeled(connection, job):
        found.append(connection.execute(_DIGESTS.where(versions.c.number.in_(numbers)), here).scalars().all())
    return {digest for digests in found for digest in digests}


def labeled(connection: Connection, job: str) -> list[int]:
    """Return the versions that labels of a job name."""
    labels = connection.execute(_LABELS, {"of_job": job}).scalar() or {}
    return sorted({kept["version"] for kept in labels.values()})


def checkpoint_every(connection: Connection, job: str) -> int:
    """Return the number of versions from one checkpoint of a job to the next; 0: it keeps none."""
    return connection.execute(_CHECKPOINT_EVERY, {"of_job": job}).scalar() or 0


def checkpoints_among(connection: Connection, job: str, digests: Collection[str]) -> set[str]:
    """Return those of the digests that are checkpoints of the job. Only the versions of the digests are read."""
    every = checkpoint_every(connection, job)
    found = models_among(connection, job, digests) if every else {}
    return {digest for number, digest in found.items() if is_checkpoint(number, every)}


def models_among(connection: Connection, job: str, digests: Collection[str]) -> dict[int, str]:
    """Return those of the digests that are models of the job's versions, by the version's number."""
    wanted, found = sorted(digests), {}
    for place in range(0, len(wanted), CHUNK):
        these = versions.c.digest.in_(wanted[place : place + CHUNK])
        rows = connection.execute(select(versions.c.number, versions.c.digest).where(versions.c.job == job, these))
        found.update({row.number: row.digest for row in rows})
    return found


def version_numbers(connection: Connection, job: str) -> list[int]:
    """Return the numbers of all versions of a job that are kept."""
    query = select(versions.c.number).where(versions.c.job == job).order_by(versions.c.number)
    return list(connection.execute(query).scalars())
