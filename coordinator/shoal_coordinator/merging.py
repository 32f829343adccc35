"""What several coordinators show of the same nodes, put together: each knows what they do in the jobs that it owns.

Bytes are the lead's: it has the counts of all. So are signs of life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from shoal_coordinator import describe, views

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

N = TypeVar("N", bound=views.Node)


PAGE = 5000


async def shown(coordinator: Coordinator, names: Sequence[str], after: str = "") -> list[views.Node]:
    """Nodes of these names: the first in their order that come after that one."""
    mine = [describe.node(coordinator, name) for name in names]
    if not mine or not coordinator.deputies.live():
        return mine
    page = urlencode({"after": after, "limit": PAGE})
    return nodes(mine, await coordinator.deputies.pages(f"/api/v1/nodes?{page}"))


def nodes(mine: Sequence[views.Node], others: Iterable[Any]) -> list[views.Node]:
    """The lead's view of nodes, with what `others` (pages of nodes, as JSON) add to it."""
    told: defaultdict[str, list[views.Node]] = defaultdict(list)
    for page in others:
        for found in views.Nodes.model_validate(page).nodes:
            told[found.name].append(found)
    return [_with(one, told[one.name]) for one in mine]


def _with(mine: N, others: Sequence[views.Node]) -> N:
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


def node_detail(mine: views.NodeDetail, others: Iterable[Any], elsewhere: Collection[str]) -> views.NodeDetail:
    """The same for one node. `elsewhere`: the jobs that others own; of each the part is told by its owner."""
    told = [views.NodeDetail.model_validate(other) for other in others]
    parts = {part.job: part for part in mine.parts}
    for other in told:
        for part in other.parts:
            if part.job in elsewhere and (part.here or part.failures or part.job not in parts):
                known = parts.get(part.job, part)
                parts[part.job] = part.model_copy(update={"up_bytes": known.up_bytes, "down_bytes": known.down_bytes})
    return _with(mine, told).model_copy(update={"parts": list(parts.values())})
