"""One view of the status of any node, standalone or of a coordinator: what its page and the command line show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = {
    "coordinated": "server",
    "suspect": "suspects coordinator",
    "gossip": "gossip",
    "returning": "returning",
}
"""A peer's state in the words for a job's modes. The dashboard has the same words."""


@dataclass(frozen=True)
class PeerOverview:
    """One other peer, as the node that was asked sees it. `problem`: empty where there is none."""

    name: str
    state: str
    exchanges: int
    last_exchange_s: float | None
    sent: int
    received: int
    problem: str


@dataclass(frozen=True)
class NodeOverview:
    """The status of one node in one job."""

    job: str
    node: str
    phase: str
    local_rounds: int
    rounds: int
    metrics: dict[str, float]
    peers: tuple[PeerOverview, ...]
    problems: tuple[str, ...]

    @property
    def live(self) -> int:
        """Return the number of other peers that are there."""
        return sum(row.state in ("alive", "suspect") for row in self.peers)


def overview(status: Mapping[str, Any]) -> NodeOverview:
    """Return the view of a status, as `GET /p2p/JOB/status` answers it."""
    counts, ages = status.get("exchanges_by_peer", {}), status.get("last_exchange_s", {})
    quarantine = status.get("quarantine", [])
    state = str(status.get("state", ""))
    rows = []
    for name, edge in sorted(status.get("peers", {}).items()):
        problem = "in quarantine" if name in quarantine else ""
        if not problem and edge.get("state") not in ("alive", "left"):
            problem = str(edge.get("last_error", ""))
        rows.append(
            PeerOverview(
                name,
                str(edge.get("state", "")),
                int(edge.get("exchanges", counts.get(name, 0))),
                ages.get(name),
                _crossed(status, edge, "sent", name),
                _crossed(status, edge, "received", name),
                problem,
            )
        )
    refused = [f"{code}: {count} refused" for code, count in sorted(status.get("refused", {}).items())]
    return NodeOverview(
        str(status.get("job", "")),
        str(status.get("node", "")),
        str(status.get("phase", MODES.get(state, state))),
        int(status.get("local_rounds", 0) or 0),
        int(status.get("rounds", 0) or 0),
        {name: value for name, value in status.get("metrics", {}).items() if isinstance(value, int | float)},
        tuple(rows),
        (*status.get("waiting", []), *refused),
    )


def _crossed(status: Mapping[str, Any], edge: Mapping[str, Any], way: str, name: str) -> int:
    """Return the bytes to or from a peer; nodes of a coordinator have them in the peer's own row."""
    return int(edge.get(way, status.get("bytes", {}).get(way, {}).get(name, 0)))
