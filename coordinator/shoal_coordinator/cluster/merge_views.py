"""Views of jobs and nodes, merged from several coordinators: each knows the jobs that it owns.

Byte counts and signs of life are the leader's, which has them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from sqlalchemy import select

from shoal_coordinator.cluster.host import ClusterParts
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.cluster.rpc import FollowerCalls
from shoal_coordinator.presenters import job_presenter
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.jobs import JobList, JobView
from shoal_coordinator.schemas.nodes import NodeDetail, NodeList, NodeView
from shoal_coordinator.storage import tables

N = TypeVar("N", bound=NodeView)


PAGE = 5000
UNREACHED = "the coordinator that owns it does not answer now"


async def follower_jobs(routes: JobRoutes, followers: FollowerCalls, parts: ClusterParts) -> list[JobView]:
    """Return followers' jobs. A job whose owner does not answer is a stub."""
    pages = [JobList.model_validate(page) for page in await followers.get_all("/api/v1/jobs")]
    jobs = routes.jobs
    found = {job.name: job for page in pages for job in page.jobs if job.name in jobs}
    missing = jobs.keys() - found
    if not missing:
        return list(found.values())
    query = select(tables.jobs).where(tables.jobs.c.name.in_(missing))
    async with parts.database.reader.connect() as connection:
        others_of = [job_presenter.fallback_view(row, "running", UNREACHED) for row in await connection.execute(query)]
    return [*found.values(), *(JobView.model_validate(one["job"]) for one in others_of)]


async def merged_nodes(
    presenter: JobPresenter, followers: FollowerCalls, names: Sequence[str], after: str = ""
) -> list[NodeView]:
    """Return the nodes of these names: the first in their order that come after that one."""
    mine = [presenter.node(name) for name in names]
    if not mine:
        return mine
    page = urlencode({"after": after, "limit": PAGE})
    others = await followers.get_all(f"/api/v1/nodes?{page}")
    return merge_nodes(mine, others) if others else mine


def merge_nodes(mine: Sequence[NodeView], others: Iterable[Any]) -> list[NodeView]:
    """Return the leader's views of nodes, with those of `others` (pages of nodes, as JSON) merged in."""
    others_of: defaultdict[str, list[NodeView]] = defaultdict(list)
    for page in others:
        for found in NodeList.model_validate(page).nodes:
            others_of[found.name].append(found)
    return [_merge(one, others_of[one.name]) for one in mine]


def _merge(mine: N, others: Sequence[NodeView]) -> N:
    training = mine.state == "online" and any(other.state == "training" for other in others)
    errors = [error for error in (mine.last_error, *(one.last_error for one in others)) if error is not None]
    return mine.model_copy(
        update={
            "state": "training" if training else mine.state,
            "jobs": [*mine.jobs, *(job for other in others for job in other.jobs)],
            "reports": mine.reports + sum(other.reports for other in others),
            "failures": mine.failures + sum(other.failures for other in others),
            "last_error": errors[0] if errors else None,
        }
    )


def merge_node_detail(mine: NodeDetail, others: Iterable[Any], elsewhere: Collection[str]) -> NodeDetail:
    """Return the detail of one node. `elsewhere`: jobs of followers, whose parts come from their owners."""
    others_of = [NodeDetail.model_validate(other) for other in others]
    parts = {part.job: part for part in mine.parts}
    for other in others_of:
        for part in other.parts:
            if part.job in elsewhere and (part.is_present or part.failures or part.job not in parts):
                known = parts.get(part.job, part)
                parts[part.job] = part.model_copy(update={"up_bytes": known.up_bytes, "down_bytes": known.down_bytes})
    return _merge(mine, others_of).model_copy(update={"parts": list(parts.values())})
