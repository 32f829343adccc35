"""Influence of each node on a job's model, and fairness of the model to each node.

Influence: the fraction of a version's weight that a node's updates had, after `limits.weight_fraction_max`. Fairness:
a metric's differences between nodes, each by its last measurement on its own data (Mohri, Sivek, Suresh, "Agnostic
Federated Learning", 2019: the worst node; Li et al., "Fair Resource Allocation in Federated Learning",
2020: the spread).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from sqlalchemy import Float, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal.results.compare import lower_is_better
from shoal_coordinator.storage.dialects import finite, json_value
from shoal_coordinator.storage.tables import job_events, reports, versions

VERSIONS_MAX = 100
"""The newest versions over which influence is reckoned."""

DECILE = 10


class NodeInfluence(BaseModel):
    """One node's share of the model."""

    node: str
    versions: int = Field(description="of those looked at, how many it has a part in")
    share: float = Field(description="its mean share of a version's weight, over all versions looked at")
    share_most: float = Field(description="its greatest share of one version")
    norm_ratio: float | None = Field(description="mean length of its updates: 2 is twice the median of all nodes")
    refused: int = Field(description="refusals of what it sent, as far as they are kept as events")
    limited: str = Field(description="why its last update was refused, or not counted in full; empty: it was not")


class Influence(BaseModel):
    """The distribution of influence on a job's model, and the updates that its limits have refused."""

    job: str
    versions: int = Field(description="how many were looked at: the newest")
    norm_factor: float = Field(description="maximum norm of an update as a multiple of the typical norm; 0: no limit")
    share_max: float = Field(description="the greatest share of a version's weight that one node has; 1: no limit")
    nodes: list[NodeInfluence] = Field(description="by share, the greatest first")


class NodeValue(BaseModel):
    """A node and what it measured."""

    node: str
    value: float


class Fairness(BaseModel):
    """A metric's differences between nodes, each by its last report that has it."""

    job: str
    metric: str
    nodes: int
    mean: float | None = Field(description="over nodes, each counting once; null: no node has measured it")
    spread: float | None = Field(description="standard deviation over nodes")
    decile: float | None = Field(description="a tenth of nodes do worse than this")
    worst: NodeValue | None
    best: NodeValue | None


async def influence_of(connection: AsyncConnection, job: str) -> tuple[int, list[NodeInfluence]]:
    """Return (number of versions, nodes by share). `limited` is left empty."""
    newest = select(versions.c.reports).where(versions.c.job == job, versions.c.number > 0)
    rows = (await connection.execute(newest.order_by(versions.c.number.desc()).limit(VERSIONS_MAX))).scalars().all()
    shares = _shares(rows)
    norms = select(reports.c.node, func.avg(reports.c.norm)).where(reports.c.job == job, reports.c.norm > 0)
    rows_of_norms = (await connection.execute(norms.group_by(reports.c.node))).all()
    mean_norms: dict[str, float] = {row[0]: row[1] for row in rows_of_norms}
    refused = await _refusals(connection, job)
    typical = median(mean_norms.values()) if mean_norms else 0.0
    found = [
        NodeInfluence(
            node=node,
            versions=len(shares[node]),
            share=sum(shares[node]) / max(1, len(rows)),
            share_most=max(shares[node], default=0.0),
            norm_ratio=mean_norms[node] / typical if node in mean_norms and typical else None,
            refused=refused[node],
            limited="",
        )
        for node in shares.keys() | refused.keys()
    ]
    return len(rows), sorted(found, key=lambda one: (-one.share, one.node))


async def _refusals(connection: AsyncConnection, job: str) -> Counter[str]:
    """Return the number of refusals by node."""
    who = job_events.c.data["node"].as_string().label("who")
    kind = job_events.c.data["kind"].as_string()
    noted = select(who).where(job_events.c.job == job, job_events.c.topic == "job_event", kind == "refusal").subquery()
    counted = select(noted.c.who, func.count()).where(noted.c.who.is_not(None)).group_by(noted.c.who)
    found: Counter[str] = Counter()
    for node, count in await connection.execute(counted):
        found[node] = count
    return found


def _shares(rows: Sequence[Sequence[Any]]) -> defaultdict[str, list[float]]:
    """Return each node's share in each version to which it contributed.

    `rows`: the counted reports of each version, [[node, task, weight, digest], …].
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for counted in rows:
        weights: defaultdict[str, float] = defaultdict(float)
        for node, _, weight, *_ in counted:
            weights[node] += weight
        total = sum(weights.values())
        for node, weight in weights.items() if total > 0 else ():
            found[node].append(weight / total)
    return found


async def fairness_of(connection: AsyncConnection, job: str, metric: str) -> Fairness:
    """Return that metric's differences between nodes. Values that are not finite do not count."""
    value = cast(finite(json_value(reports.c.metrics, metric)), Float)
    last = select(func.max(reports.c.id)).where(reports.c.job == job, value.is_not(None)).group_by(reports.c.node)
    rows = (await connection.execute(select(reports.c.node, value).where(reports.c.id.in_(last)))).all()
    lower = lower_is_better(metric)
    known = [NodeValue(node=node, value=number) for node, number in rows]
    known.sort(key=lambda one: (-one.value if lower else one.value, one.node))  # the worst first
    values = [one.value for one in known]
    return Fairness(
        job=job,
        metric=metric,
        nodes=len(known),
        mean=fmean(values) if values else None,
        spread=pstdev(values) if values else None,
        decile=float(np.percentile(values, 100 - DECILE if lower else DECILE)) if values else None,
        worst=known[0] if known else None,
        best=known[-1] if known else None,
    )
