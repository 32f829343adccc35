"""The machine of one job, as this process begins it, or takes it up from where an earlier one was."""

from __future__ import annotations

from random import Random
from typing import Any

from shoal.core.algorithm.reference_model import NEW_REFERENCE, unpack_task
from shoal.core.client.worker import Worker
from shoal.core.failover.failover_peer import FailoverPeer, GossipBuilder
from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.gossip.gossip import GossipPeer
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef, Task
from shoal.jobs.spec import JobSpec
from shoal_edge_client.peering.conservation_sums import ConservationSums
from shoal_edge_client.peering.node_state import NodeState


class PeerSession:
    """A `FailoverPeer` and what it is made with. `process_number`: the number of this start, greater than all before.

    `bytes_per_hour`: this machine's own limit among peers. Raises `InvalidJob` where the job cannot keep to one.
    """

    def __init__(
        self, spec: JobSpec, worker: Worker, process_number: int, state: NodeState, *, bytes_per_hour: float = 0.0
    ) -> None:
        self.spec, self.node, self.process_number, self.state = spec, worker.node, process_number, state
        self.weight = 0.0
        """The examples that this node speaks for; 0: that is not known yet."""
        self.weight_max = 0
        """Largest weight that peers accept from it; 0: any."""
        self._plan, self._algorithm = spec.plan(), spec.build_algorithm()
        builder = GossipBuilder(
            self._new_gossip, self._restore_gossip, self._algorithm, state.blobs, self._plan.filters
        )
        self.peer = FailoverPeer(worker, builder, failover=spec.gossip.failover(), population=1)
        self.peer.budget = ByteBudget(spec.gossip.budget(bytes_per_hour))
        saved = state.load_peer()
        self.sums = ConservationSums(spec.seed, saved.sums if saved is not None else None)
        if saved is not None:
            self.peer.restore(saved.peer)

    def held_model(self, task: Task, slots: Slots, base: Slots) -> BlobRef | None:
        """Return the blob of the model from which the node could continue, given its task; blocks.

        A new base that came as a difference is not among the task's bodies.
        """
        if task.reference is None or not task.numbers.get(NEW_REFERENCE):
            return task.reference or task.blob
        _, held = unpack_task(task, slots, base, self._plan.filters)
        return self.state.put_base(held)

    def _gossip_state(self, slots: Slots) -> GossipState:
        weight = self.weight or 1.0
        rng = Random(f"{self.spec.seed}/{self.node}/{self.process_number}")
        most = self.weight_max or weight
        me = GossipState(
            self.node, self.process_number, min(weight, most), slots, self.state.blobs, rng, budget=self.peer.budget
        )
        me.filters = self.spec.shown_through()
        return me

    def _new_gossip(self, slots: Slots) -> GossipPeer:
        mixer = self.spec.gossip.build_mixing().mixer()
        return GossipPeer(self._plan, self._algorithm, self._gossip_state(slots), mixer)

    def _restore_gossip(self, state: dict[str, Any]) -> GossipPeer:
        mixer = self.spec.gossip.build_mixing().mixer()
        return GossipPeer.restore(self._plan, self._algorithm, self._gossip_state({}), mixer, state)
