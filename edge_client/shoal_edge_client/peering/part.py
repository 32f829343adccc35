"""The machine of one job, as this process begins it, or takes it up from where an earlier one was."""

from __future__ import annotations

from random import Random
from typing import Any

from shoal.core.anchor import SYNC, received
from shoal.core.gossip import Gossip, Holding
from shoal.core.message import Order, Ref
from shoal.core.meter import Meter
from shoal.core.peer import Peer
from shoal.core.tree import Slots
from shoal.core.worker import Worker
from shoal.spec import JobSpec
from shoal_edge_client.peering.books import Books
from shoal_edge_client.peering.desk import Desk


class Part:
    """`peer` and what it is made with. `boot`: the number of this beginning, greater than ever before.

    `bytes_per_hour`: this machine's own limit among peers. Raises `InvalidJob` where the job cannot keep to one.
    """

    def __init__(self, spec: JobSpec, worker: Worker, boot: int, desk: Desk, *, bytes_per_hour: float = 0.0) -> None:
        self.spec, self.node, self.boot, self.desk = spec, worker.node, boot, desk
        self.weight = 0.0
        """The examples that this node speaks for; 0: that is not known yet."""
        self.weight_max = 0
        """What others let it claim; 0: any."""
        self._plan, self._algorithm = spec.plan(), spec.build_algorithm()
        self.peer = Peer(
            worker,
            self._begin,
            self._revive,
            algorithm=self._algorithm,
            filters=self._plan.filters,
            bodies=desk.bodies,
            failover=spec.gossip.failover(),
            population=1,
        )
        self.peer.meter = Meter(spec.gossip.budget(bytes_per_hour))
        stood = desk.standing()
        self.books = Books(spec.seed, stood.books if stood is not None else None)
        if stood is not None:
            self.peer.restore(stood.peer)

    def whole(self, order: Order, slots: Slots, base: Slots) -> Ref | None:
        """Return the model from which the node could carry on that has this order, kept as a body; blocks.

        A new base that came as a difference is not among the order's bodies.
        """
        if order.base is None or not order.numbers.get(SYNC):
            return order.base or order.body
        _, held = received(order, slots, base, self._plan.filters)
        return self.desk.hold(held)

    def _holding(self, slots: Slots) -> Holding:
        weight = self.weight or 1.0
        rng = Random(f"{self.spec.seed}/{self.node}/{self.boot}")
        most = self.weight_max or weight
        me = Holding(self.node, self.boot, min(weight, most), slots, self.desk.bodies, rng, meter=self.peer.meter)
        me.filters = self.spec.shown_through()
        return me

    def _begin(self, slots: Slots) -> Gossip:
        mixer = self.spec.gossip.build_mixing().mixer()
        return Gossip(self._plan, self._algorithm, self._holding(slots), mixer)

    def _revive(self, state: dict[str, Any]) -> Gossip:
        mixer = self.spec.gossip.build_mixing().mixer()
        return Gossip.restore(self._plan, self._algorithm, self._holding({}), mixer, state)
