"""Nodes that are each other's peers and do what the test makes them do; a coordinator only hears their words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from shoal.trust.keys import SigningKey
from tests.support.coordinator import Inside
from tests.support.node import Node
from tests.support.scenario import SIZE, Stage, by_hand, set_up

PARTS = 32
BYTES = 40_000
GOSSIP: dict[str, Any] = {"allowed": True, "coordinator_timeout_s": 7.5, "handback_timeout_s": 3600.0}


@dataclass
class Member:
    """A node with a model of `PARTS` numbers, which it tells as its model_projection."""

    node: Node
    weight: float
    model: npt.NDArray[np.float64]
    learned: npt.NDArray[np.float64]
    state: str = "coordinated"
    round: int = 0
    rounds_by_peer: dict[str, int] = field(default_factory=dict)
    edges: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.node

    def word(self) -> dict[str, Any]:
        return {
            "process_number": 1,
            "state": self.state,
            "term": 2,
            "local_rounds": self.round,
            "weight": self.weight,
            "rounds_by_peer": {**self.rounds_by_peer, self.name: self.round},
            "peers": self.edges,
            "refused": self.refused,
            "model_projection": list(self.weight * self.model),
            "expected_projection": list(self.weight * self.learned),
        }

    def meet(self, other: Member) -> None:
        """A conserving exchange: both models become their weighted mean, as either tells it."""
        mean = (self.weight * self.model + other.weight * other.model) / (self.weight + other.weight)
        rounds_by_peer = {**self.rounds_by_peer, self.name: self.round, other.name: other.round}
        rounds_by_peer |= {
            name: max(count, rounds_by_peer.get(name, 0)) for name, count in other.rounds_by_peer.items()
        }
        for one, its in ((self, other), (other, self)):
            one.model, one.rounds_by_peer = mean.copy(), dict(rounds_by_peer)
            edge = one.edges[its.name]
            edge |= {"exchanges": edge["exchanges"] + 1, "sent": edge["sent"] + BYTES, "rtt_ms": 3.5}
            edge["received"] += BYTES


class SimulatedNodes:
    """A job whose nodes, n0 and on, may carry on as peers."""

    def __init__(self, running: Inside, count: int, job: str = "main", **spec: Any) -> None:
        self.running, self.job = running, job
        self._rng = np.random.default_rng(4)
        self.stage: Stage = set_up(running, job, gossip=GOSSIP, **spec)
        self.stage.nodes += [by_hand(running, f"n{index}", {job: SIZE}) for index in range(3, count)]
        base = self._rng.normal(size=PARTS)
        self.members = [
            Member(node, 100.0 + 10 * index, base.copy(), base.copy()) for index, node in enumerate(self.stage.nodes)
        ]
        for one in self.members:
            one.edges = {
                other.name: {"state": "alive", "exchanges": 0, "sent": 0, "received": 0}
                for other in self.members
                if other is not one
            }
            peer = {"public_key": SigningKey.make().public_key, "urls": ["http://10.0.0.7:9001"], "is_reachable": True}
            self._send(one, "POST", "/hello", json={"peer": peer})
            self._send(one, "GET", "/work", params={"wait_s": 0, "job": job})
        self._send(self.members[0], "GET", f"/jobs/{job}/trust")

    def _send(self, one: Member, method: str, path: str, **more: Any) -> httpx.Response:
        answer = self.stage.send(one.name, method, path, **more)
        assert answer.status_code < 300, answer.text
        return answer

    def go(self, state: str) -> None:
        """All are in that state, live, and have refused nothing; no status has been reported yet."""
        for one in self.members:
            one.state, one.refused = state, {}
            for edge in one.edges.values():
                edge["state"] = "alive"

    def learn(self) -> None:
        """Make a local round of every node."""
        for one in self.members:
            step = 0.1 * self._rng.normal(size=PARTS)
            one.model, one.learned, one.round = one.model + step, one.learned + step, one.round + 1

    def mix(self, pairs: int) -> None:
        """Make that many exchanges of random pairs."""
        for _ in range(pairs):
            a, b = self._rng.choice(len(self.members), 2, replace=False)
            self.members[a].meet(self.members[b])

    def tell(self, *silent: str) -> None:
        """Return the statuses of all but these."""
        for one in self.members:
            if one.name not in silent:
                self._send(one, "POST", f"/jobs/{self.job}/peer-status", json=one.word())

    def close(self) -> None:
        self.stage.close()
