"""A hub whose nodes report whatever a test wants, to show what the limits let through."""

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import pack
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.update_bounds import UpdateBounds
from shoal.core.model.tree import Tree, norm
from shoal.core.protocol.machine import Effect, JobEvent, Restarted, Send
from shoal.core.protocol.message import Ack, Join, Report, Task
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs

LIE = 1e15


class BoundedJob:
    """A hub and its nodes, which report whatever a test wants."""

    def __init__(self, *nodes: str, bounds: UpdateBounds | None = None, **how) -> None:
        self.blobs, self.nodes = MemoryBlobs(), nodes
        start = self.blobs.put({"model": how.pop("start", Tree.of({"w": np.zeros(4)}))})
        quorum = len(nodes)
        schedule = how.pop("schedule", Rounds(min_nodes=quorum, quorum=quorum))
        precision = how.pop("precision", "float64")
        filters = how.pop("filters", ())
        limits = bounds or UpdateBounds()
        plan = JobPlan(100, initial_model=start, bounds=limits, aggregation_precision=precision, filters=filters)
        self.now = 0.0
        self.hub = Hub(plan, how.pop("algorithm", ALGORITHM), schedule, self.blobs)
        self.journal: list[tuple[object, float]] = []
        for event in (Restarted(), *map(Join, nodes)):
            self.on(event)

    def on(self, event: object) -> list[Effect]:
        self.journal.append((event, self.now))
        return self.hub.on(event, self.now)  # type: ignore[arg-type]

    def report(self, node: str, length: float, weight: float = 1.0) -> list[Effect]:
        return self.report_update(node, Tree.of({"w": np.array([length, 0.0, 0.0, 0.0])}), weight)

    def report_update(self, node: str, update: Tree, weight: float = 1.0) -> list[Effect]:
        task = self.hub.poll_reply(node)
        assert isinstance(task, Task), task
        ref = self.blobs.put(pack(self.hub.settings.plan.filters, {"model": update}, 0))
        return self.on(Report(node, task.id, task.version, weight, ref, {}, norm(update)))

    def round(self, **lengths: float) -> None:
        for node, length in lengths.items():
            self.report(node, length)

    @property
    def model(self) -> float:
        return float(tree_slot(self.hub.store.slots, "model")["w"][0])


ALGORITHM = Algorithm()


def ack(effects: list[Effect]) -> Ack:
    (found,) = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Ack)]
    return found


def texts(effects: list[Effect], kind: str) -> list[str]:
    return [e.text for e in effects if isinstance(e, JobEvent) and e.kind == kind]
