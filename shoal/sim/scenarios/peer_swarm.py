"""Many small runs of peers without a coordinator, drawn from seeds: different mixers and faults.

A run that violates conservation, or does not end, raises `SeedFailed` with the command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from random import Random
from typing import Any

from shoal.algorithms.diloco import DiLoCo
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filter
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import PeerMessage
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import GraphName, Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.sim.checks.reference_checks import Violation
from shoal.sim.hosts.byzantine import ByzantineWire
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.faults import NetworkSplit, PeerNetworkConditions
from shoal.sim.scenarios.swarm import repeatable

ROUND_S = 60.0
"""Seconds that a run has after the faults, for each local round and in addition to `GRACE_S`, to end."""

GRACE_S = 600.0

STEPS_MAX = 60_000
"""Twice the steps of the longest run; a run with more does not end."""


@dataclass(frozen=True)
class GossipScenario:
    """One run: its peers, their mixer and the faults."""

    seed: int
    mixing: Mixing
    weights: dict[str, float]
    pace_s: dict[str, float]
    rounds: int
    conditions: PeerNetworkConditions
    crashes: int
    """Number of times that each process dies, between any two of its effects."""
    near: float = 0.9
    """See `TerminationRule`: no matter how near, as what is looked for happens before the end."""
    filters: tuple[Filter, ...] = ()
    """Filters of published models."""
    byzantine: str = ""
    """The peer that reports false counters; empty: none."""
    algorithm: Algorithm = field(default_factory=Algorithm)


FILTERS: tuple[tuple[Filter, ...], ...] = ((Half(),), (Half("fp16"),), (Quantize(),), (Quantize(bucket=2),))


def draw(seed: int) -> GossipScenario:
    """Return the scenario of that seed."""
    rng = Random(seed)
    names = [f"n{number}" for number in range(1, rng.randint(2, 8) + 1)]
    until_s = rng.choice((5.0, 20.0, 60.0))
    split = NetworkSplit(frozenset(rng.sample(names, len(names) // 2)), 3.0, 12.0)
    mixing = rng.choice((draw_pairwise, draw_neighbors, draw_push_sum, draw_all_reduce))(rng)
    byzantine_rng = Random(f"liars of {seed}")
    byzantine = byzantine_rng.choice(names) if len(names) > 2 and byzantine_rng.random() < 0.2 else ""
    if mixing.name == "all_reduce":
        byzantine = ""  # a Byzantine peer keeps the ring from closing, so models do not converge
    filters = Random(f"filters of {seed}").choice((*FILTERS, (), (), (), ())) if mixing.supports_filters else ()
    return GossipScenario(
        seed,
        mixing,
        {name: float(rng.choice((1, 10, 359))) for name in names},
        {name: rng.choice((0.3, 1.0, 2.0)) for name in names},
        rng.randint(3, 15),
        PeerNetworkConditions(
            until_s=until_s,
            delay_s=rng.choice((0.0, 0.02, 0.3, 2.0)),
            message_loss=rng.choice((0.0, 0.02, 0.1, 0.3)),
            message_duplicates=rng.choice((0.0, 0.1, 0.4)),
            slow=rng.choice((0.0, 0.0, 0.1)),
            cuts=(split,) if rng.random() < 0.3 else (),
        ),
        rng.choice((0, 0, 1, 4)),
        filters=filters,
        byzantine=byzantine,
        algorithm=DiLoCo(steps=1) if Random(f"algorithm of {seed}").random() < 0.2 else Algorithm(),
    )


def draw_pairwise(rng: Random) -> Mixing:
    """Return pairwise exchange, within its budget or not, with the trigger or without."""
    return Pairwise(models_per_round=rng.choice((2.0, 0.7)), delta=rng.choice((0.0, 0.0, 1.0)))


def draw_neighbors(rng: Random) -> Mixing:
    """Return averaging on any graph."""
    graphs: tuple[GraphName, ...] = ("ring", "torus", "regular", "complete", "exponential")
    graph = rng.choice(graphs)
    return Neighbors(
        graph,
        degree=rng.randint(2, 4),
        seed=rng.getrandbits(16),
        target="examples" if rng.random() < 0.5 and graph != "exponential" else "uniform",
        exchange_timeout_s=rng.choice((0.5, 5.0, 20.0)),
    )


def draw_push_sum(rng: Random) -> Mixing:
    """Return push-sum that keeps much or little mass."""
    return PushSum(floor=rng.choice((0.01, 0.25, 1.0)))


def draw_all_reduce(rng: Random) -> Mixing:
    """Return all-reduce with long or short timeouts."""
    return AllReduce(exchange_timeout_s=rng.choice((1.0, 5.0, 20.0)))


class TracedGossipWorld(GossipWorld):
    """A `GossipWorld` that writes a line for each message."""

    def __init__(self, write_line: Callable[[str], None], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._write_line = write_line

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        self._write_line(f"{self.clock.now:9.3f}  {source} -> {target}  {described(message)}")
        super().send(source, target, message)


def described(message: PeerMessage) -> str:
    """Return a message in one line, blobs by the start of their names."""
    parts = []
    for one in fields(message):
        value = getattr(message, one.name)
        if one.name not in {"node", "version_vector"}:
            parts.append(f"{one.name}={value.digest[:6] if isinstance(value, BlobRef) else value}")
    return f"{type(message).__name__}({', '.join(parts)})"


def run(scenario: GossipScenario, write_line: Callable[[str], None] | None = None) -> GossipWorld:
    """Run it to its end; `write_line` takes a line for each message. Raises `Violation` or `ConservationViolation`."""
    shared = GossipSetup(
        JobPlan(1, seed=scenario.seed),
        scenario.algorithm,
        scenario.mixing.mixer,
        scenario.algorithm.init(toy_tree((1.0, 2.0, 3.0), 0)),
        TerminationRule(scenario.rounds, convergence_tol=scenario.near),
        scenario.seed,
        filters=scenario.filters,
    )
    learners = {name: ToyLearner(number) for number, name in enumerate(scenario.weights, 1)}
    kind: Callable[..., GossipWorld] = GossipWorld if write_line is None else partial(TracedGossipWorld, write_line)
    world = kind(
        shared, learners, scenario.weights, scenario.pace_s, conditions=scenario.conditions, crashes=scenario.crashes
    )
    if scenario.byzantine:
        world.wire = ByzantineWire(scenario.byzantine, list(scenario.weights), Random(f"lies of {scenario.seed}"))
    if not world.run(scenario.conditions.until_s + GRACE_S + ROUND_S * scenario.rounds, STEPS_MAX):
        rounds = {name: peer.gossip.me.local_rounds for name, peer in world.peers.items() if peer.gossip is not None}
        raise Violation(
            f"ends: after {world.clock.now:.0f} s and {world.clock.steps} steps the rounds are {rounds} "
            f"of {scenario.rounds}"
        )
    if world.wire is not None and world.wire.unreadable:
        sender, why = world.wire.unreadable[0]
        raise Violation(f"muted: {len(world.wire.unreadable)} messages of honest peers, first of {sender}: {why}")
    return world


def run_seed(seed: int, write_line: Callable[[str], None] | None = None) -> GossipWorld:
    """Run that seed. Raises `SeedFailed`."""
    with repeatable(seed, "--peers "):
        return run(draw(seed), write_line)
