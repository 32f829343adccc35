"""Accuracy through an outage: the coordinator is dead for half of the job, and the peers carry on, or do not.

    python benchmarks/outage.py --data FOLDER

MNIST, 8,000 images to train on and 2,000 to test, Dirichlet(0.3) over the nodes, a small MLP (25,450 weights), five
local steps of 16 a round. Rounds 0 to 20 with the coordinator, dead until 60, back until 80. Hub, nodes and the switch
are the product's, on a simulated clock; a round takes 10 s, and the switch its 30 s and more, as with the defaults.
Beside it: never interrupted; waiting; and every node training alone until the models are averaged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean

import numpy as np
import torch
from torch import nn

from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.algorithm import LocalTask, tree_slot
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.failover.failover import Failover
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Task
from shoal.core.protocol.peer_message import CoordinatorProbe, CoordinatorStatus, DeclareFailover
from shoal.learn import mnist
from shoal.learn.data import datasets
from shoal.learn.data.partition import dirichlet
from shoal.learn.training.torch_learner import TorchLearner
from shoal.mixing.pairwise import Pairwise
from shoal.schedules.rounds import Rounds
from shoal.sim.hosts.peer_node import FailoverSetup, FailoverWorld
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.hosts.world import SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults, PeerNetworkConditions
from shoal.sim.network.network import Network
from shoal.sim.network.observer import Observer

ROUND_S = 10.0
DIES, BACK, ENDS = 20, 60, 80
TRAIN, TEST = 8000, 2000


@dataclass(frozen=True)
class FiveSteps(FedAvg):
    """Federated averaging with five local steps of sixteen examples."""

    def train_config(self, task: LocalTask) -> TrainConfig:
        """Train five steps, whatever the node's number of examples."""
        return TrainConfig(steps=5, batch_size=16, lr=self.lr, seed=task.seed)


class Silent(Network):
    """A network without messages: every node is alone."""

    def send(self, source: str, target: str, message: object, deliver: Callable[..., None]) -> None:  # type: ignore[override]
        """Let through what concerns the hub, so that all fail over together; no model."""
        if isinstance(message, CoordinatorProbe | CoordinatorStatus | DeclareFailover):
            super().send(source, target, message, deliver)


class Job:
    """The job, its nodes, and a judge with the test images."""

    def __init__(self, nodes: int, seed: int, folder: str, outage: str) -> None:
        images = datasets.load("mnist", Path(folder) if folder else None)
        order = np.random.default_rng(seed).permutation(len(images.train_y))[:TRAIN]
        parts = dirichlet(images.train_y[order], nodes, 0.3, seed)
        names = tuple(f"n{number:02d}" for number in range(nodes))
        pixels, classes = mnist.pixels, mnist.classes
        learners = {
            name: TorchLearner(
                model, (pixels(images.train_x[order[part]], "mnist"), classes(images.train_y[order[part]])), None
            )
            for name, part in zip(names, parts, strict=True)
        }
        self.weights = {name: float(len(part)) for name, part in zip(names, parts, strict=True)}
        test = pixels(images.test_x[:TEST], "mnist"), classes(images.test_y[:TEST])
        self.judge = TorchLearner(model, test, test)
        self.blobs, clock = MemoryBlobs(), VirtualClock()
        algorithm = FiveSteps(lr=0.1)
        setup = SimulationSetup(
            JobPlan(ENDS, seed=seed), algorithm, Rounds(deadline_s=3600.0), names, Faults(), seed=seed
        )
        failover = Failover(min_gossip_s=30.0) if outage in ("gossip", "alone") else Failover(coordinator_timeout_s=1e9)

        def perform(node: str, order: Task, memory: BlobRef | None) -> LearnerTask:
            return LearnerTask(algorithm, learners[node], self.blobs, order, memory)

        self.world = FailoverWorld(
            setup,
            FailoverSetup(failover, lambda: Pairwise().mixer(), self.weights),
            perform,
            lambda _node, _order: ROUND_S,
            conditions=PeerNetworkConditions(),
            clock=clock,
            blobs=self.blobs,
            watch=Observer(),
        )
        if outage == "alone":
            self.world.mesh = Silent(clock, PeerNetworkConditions(), Random(seed))
        if outage != "none":
            clock.at(DIES * ROUND_S, self.world.coordinator.kill, (BACK - DIES) * ROUND_S)
        self.world.start()
        self.world.update_live_peers()

    def accuracy(self, tree: Tree) -> float:
        """Evaluate on the test images."""
        self.judge.load(tree)
        return self.judge.evaluate()["eval/accuracy"]

    def at(self, turn: int) -> tuple[float, float, float]:
        """Return (mean, least) accuracy of the peers' own models, and of their weighted mean; the hub's if
        none gossips.
        """
        self.world.run(turn * ROUND_S)
        peers = {name: self.world.peer(name).peer.gossip for name in self.world.nodes}
        models = {name: gossip.me.model for name, gossip in peers.items() if gossip is not None}
        if not models:
            whole = self.accuracy(tree_slot(self.world.coordinator.hub.store.slots, "model"))
            return whole, whole, whole
        own = [self.accuracy(tree) for tree in models.values()]
        return mean(own), min(own), self.accuracy(weighted(models, self.weights))

    def sent(self) -> float:
        """Return the models that a peer has sent to others, on average."""
        return self.world.models_sent / len(self.weights)


def model() -> nn.Module:
    """Return the network 784-32-10: 25,450 weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def weighted(trees: dict[str, Tree], weights: dict[str, float]) -> Tree:
    """Return the weighted mean."""
    totals = Totals()
    for name, tree in trees.items():
        slots: Slots = {"model": tree}
        totals.add(slots, weights[name], 1e6)
    return totals.mean("model")


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder of the four IDX files (default: the cache)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("nodes  outage     at 20  own at 60: mean, least  merged   at 80  sent")
    for nodes in given.nodes:
        for outage in ("none", "wait", "alone", "gossip"):
            rows = []
            for seed in range(given.seeds):
                job = Job(nodes, seed, given.data, outage)
                before, during, after = job.at(DIES)[2], job.at(BACK), job.at(ENDS)[2]
                rows.append((before, *during, after, job.sent()))
            a, b, c, d, e, f = (mean(column) for column in zip(*rows, strict=True))
            print(f"{nodes:5}  {outage:8}  {a:6.3f}  {b:14.3f}, {c:.3f}  {d:6.3f}  {e:6.3f}  {f:4.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
