"""Jobs that move between server and peers while everything goes wrong, drawn from a seed, and what must hold.

- A version number is never used for two models, and versions follow each other without a gap.
- What peers hand back is merged exactly: the new version is the old one and the weighted mean of what was handed back.
  A weight is only less than claimed where the node would have more than its greatest share.
- The model that the gate's judges have measured is the one that becomes the version.
- Work against a base that becomes a first local round is added to that base: so a node goes on with its own model.
- A peer gives its model up only when that was counted.
- A node's term never falls, not even over its death.
- Every run ends: once the faults are over the job is brought to its end, by its coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.bounds import Bounds
from shoal.core.failover import Failover
from shoal.core.hub import Hub, Plan
from shoal.core.machine import Event, Save, Send, Version, Wake
from shoal.core.message import Ack, Order, Ref, Report
from shoal.filters.quantize import Quantize
from shoal.schedules.rounds import Rounds
from shoal.sim.bodies import MemoryBodies
from shoal.sim.books import floats
from shoal.sim.clock import Clock
from shoal.sim.coordinator import Timing
from shoal.sim.faults import Cut, Faults
from shoal.sim.mesh import Split, Weather
from shoal.sim.peer_node import Commons, PeerWorld
from shoal.sim.swarm import Broken, changing, draining
from shoal.sim.switching_jobs import draw_job
from shoal.sim.toys import ToyLearner
from shoal.sim.watch import Watch
from shoal.sim.work import Begun
from shoal.sim.world import Setup

GRACE_S = 3600.0
"""How long a run may go on after its faults."""

SWITCH_BACK_S = 120.0
"""So long after the faults an operator calls the job back to the server, should it still be away."""

STEPS_MAX = 400_000

ROUNDING = 1e-5
"""What single precision may lose in a merge, relative to the model."""

SHARE = Bounds().share_max - ROUNDING
"""The least share of a version's weight for which a weight may be reduced."""


@dataclass(frozen=True)
class Move:
    """An operator's wish, or a death of the coordinator that lasts."""

    at: float
    what: str
    down_s: float = 0.0


class Witness(Watch):
    """Sees every version, every report that counts, and every model that is given up."""

    def __init__(self, bodies: MemoryBodies, tell: Callable[[str], None] | None = None) -> None:
        self._bodies, self._tell = bodies, tell
        self.versions: dict[int, Version] = {}
        self.counted: set[tuple[str, tuple[int, int]]] = set()
        self.merges = self.judged = 0
        self._on_trial: Ref | None = None
        self._kept: list[Ref] = []
        self._reports: dict[tuple[int, int], tuple[float, Ref]] = {}

    def fed(self, index: int, event: Event, now: float, effects: Any, hub: Hub) -> None:
        """Hold versions and acknowledgements against what was known."""
        if self._tell is not None:
            self._tell(f"{now:9.3f} {event} {[effect for effect in effects if not isinstance(effect, Wake)]}")
        if isinstance(event, Report) and event.body is not None:
            self._reports[event.order] = event.weight, event.body
            self._kept = [*self._kept, event.body][-64:]
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Ack) and effect.body.counted:
                self.counted.add((effect.to, effect.body.order))
            if isinstance(effect, Save) and isinstance(effect.what, Version):
                self._version(effect.what)
        self._on_trial = hub.gathered.trial.ref if hub.gathered.trial is not None else None

    def _version(self, version: Version) -> None:
        known = self.versions.get(version.number)
        if known is not None and known.model != version.model:
            raise Broken(f"version {version.number} is two models")
        if version.number and version.number - 1 not in self.versions:
            raise Broken(f"version {version.number} follows none")
        if known is None and version.why.startswith("back at the server"):
            self._check_merge(version)
        self.versions[version.number] = version
        self._kept = [*self._kept, version.model][-64:]

    def _check_merge(self, version: Version) -> None:
        self.merges += 1
        self.judged += self._on_trial is not None
        if self._on_trial is not None and self._on_trial != version.model:
            raise Broken(f"version {version.number} is not the model that was judged")
        before = self._floats(self.versions[version.number - 1].model)
        parts = [(weight, self._reports[order][1]) for _, order, weight, _ in version.reports]
        total = sum(weight for weight, _ in parts)
        for node, order, weight, _ in version.reports:
            claimed = self._reports[order][0]
            if weight != claimed and not SHARE * total <= weight < claimed:
                raise Broken(f"version {version.number} counts {node} for {weight:g}, not for {claimed:g}")
        moved = sum(weight * self._floats(ref) for weight, ref in parts) / total
        off = float(np.abs(self._floats(version.model) - before - moved).max())
        if off > ROUNDING * (1 + float(np.abs(before + moved).max())):
            raise Broken(f"version {version.number} is off by {off:.3g} from what was handed back")

    def _floats(self, ref: Ref) -> Any:
        return floats(tree_slot(self._bodies.get(ref), "model"))

    def names(self, hub: Hub) -> list[Ref | None]:
        """What the checks need."""
        return list(self._kept)


@dataclass
class Run:
    """One drawn run."""

    seed: int
    setup: Setup
    commons: Commons
    weather: Weather
    moves: tuple[Move, ...]
    pace_s: dict[str, float]


def draw(seed: int) -> Run:
    """The run of that seed, of any job that may go to its peers."""
    run, job = draw_plain(seed), draw_job(Random(f"job of {seed}"))
    plan = replace(run.setup.plan, filters=job.filters, versions=job.versions)
    return replace(run, setup=replace(run.setup, plan=plan, algorithm=job.algorithm, schedule=job.schedule))


def draw_plain(seed: int) -> Run:
    """The run of that seed, of federated averaging in rounds."""
    rng = Random(f"switching/{seed}")
    nodes = tuple(f"n{number}" for number in range(1, rng.randint(2, 7) + 1))
    until = rng.choice((60.0, 150.0, 300.0))
    cuts = tuple(
        Cut(node, start, start + rng.choice((10.0, 40.0, 90.0)))
        for node in nodes
        if rng.random() < 0.25
        for start in [rng.random() * until]
    )
    faults = Faults(
        until_s=until,
        delay_s=rng.choice((0.0, 0.02, 0.3)),
        loss=rng.choice((0.0, 0.0, 0.02, 0.1)),
        duplicate=rng.choice((0.0, 0.1)),
        cuts=cuts,
        hub_crashes=rng.choice((0, 1, 3)),
        node_crashes=rng.choice((0, 0, 1, 2)),
    )
    plan = Plan(
        rng.randint(5, 40), seed=seed, filters=rng.choice(((), (), (Quantize(bits=8),))), gate=rng.choice((0.0, 0.02))
    )
    setup = Setup(
        plan, Algorithm(), Rounds(deadline_s=rng.choice((8.0, 20.0))), nodes, faults, Timing(down_s=10.0), 5.0, seed
    )
    failover = Failover(
        ttl_s=rng.choice((12.0, 15.0)),
        grace_s=rng.choice((6.0, 15.0)),
        votes=rng.choice(("any", "any", "majority")),
        dwell_s=rng.choice((10.0, 30.0)),
        settle_s=rng.choice((5.0, 20.0)),
    )
    halves = frozenset(nodes[: len(nodes) // 2])
    split = (Split(halves, 0.3 * until, 0.6 * until),) if rng.random() < 0.3 else ()
    weather = Weather(
        until, rng.choice((0.0, 0.02, 0.3)), rng.choice((0.0, 0.05, 0.1)), rng.choice((0.0, 0.1)), splits=split
    )
    return Run(
        seed,
        setup,
        Commons(failover, weights={node: float(rng.choice((1, 3, 10))) for node in nodes}),
        weather,
        draw_moves(rng, until),
        {node: rng.choice((0.5, 2.0, 4.0)) for node in nodes},
    )


def draw_moves(rng: Random, until: float) -> tuple[Move, ...]:
    """Long deaths of the coordinator, flapping, and an operator who changes his mind."""
    kind = rng.random()
    if kind < 0.4:
        return tuple(
            Move(rng.random() * until, "kill", rng.choice((20.0, 60.0, 120.0))) for _ in range(rng.randint(1, 2))
        )
    if kind < 0.6:
        start = rng.random() * until / 2
        return tuple(Move(start + 15.0 * turn, "kill", 10.0) for turn in range(rng.randint(2, 10)))
    if kind < 0.9:
        away = rng.random() * until / 2
        back = away + rng.choice((0.0, 5.0, 60.0))
        return Move(away, "gossip"), Move(back, "server"), Move(rng.random() * until, "kill", rng.choice((2.0, 50.0)))
    return ()


def run_seed(
    seed: int, tell: Callable[[str], None] | None = None, drawn: Callable[[int], Run] = draw
) -> tuple[PeerWorld, Witness]:
    """Draw a run, let it happen, and hold it against everything that must be so; `tell`: line by line."""
    run = drawn(seed)
    bodies, clock = MemoryBodies(), Clock()
    witness = Witness(bodies, tell)
    learners = {node: ToyLearner(number) for number, node in enumerate(run.setup.nodes, 1)}
    rng = Random(seed)

    def perform(node: str, order: Order, memory: Ref | None) -> Begun:
        return Begun(run.setup.algorithm, learners[node], bodies, order, memory, run.setup.plan.filters)

    def pace(node: str, _order: Order) -> float:
        return run.pace_s[node] * rng.choice((1.0, 1.0, 0.7, 1.6))

    world = PeerWorld(
        run.setup, run.commons, perform, pace, weather=run.weather, clock=clock, bodies=bodies, watch=witness
    )
    try:
        _let_happen(run, world)
        _check_end(world, witness)
    except AssertionError as error:
        raise Broken(f"seed {seed}: {error}\nrepeat it: python -m shoal.sim --switching {seed} --trace") from error
    return world, witness


def _let_happen(run: Run, world: PeerWorld) -> None:
    world.start()
    world.look()
    for move in run.moves:
        if move.what == "kill":
            world.clock.at(move.at, world.coordinator.kill, move.down_s)
        else:
            world.switch(move.what, move.at)
    for act in (*draining(run.seed, run.setup), *changing(run.seed, run.setup)):
        world.act(act)
    world.clock.at(run.setup.faults.until_s + SWITCH_BACK_S, world.switch, "server", 0.0)
    world.clock.at(run.setup.faults.until_s, world.care)
    if not world.run(run.setup.faults.until_s + GRACE_S, STEPS_MAX):
        hub = world.coordinator.hub
        states = {name: (world.peer(name).up, world.peer(name).peer.state) for name in world.nodes}
        raise Broken(f"not over: version {hub.version}, {hub.phase}, {hub.mode}; {states}")


def _check_end(world: PeerWorld, witness: Witness) -> None:
    """Whoever has gone away has handed back."""
    for name in world.nodes:
        peer = world.peer(name)
        if peer.terms != sorted(peer.terms):
            raise Broken(f"{name} went back in its terms: {peer.terms}")
        for base, start in peer.adopted:
            off = float(np.abs(floats(base) - floats(start)).max())
            if off > ROUNDING * (1 + float(np.abs(floats(base)).max())):
                raise Broken(f"{name} added work that is relative to a base to a model {off:.3g} from it")
        for order in peer.given_up:
            if order is None or (name, order) not in witness.counted:
                raise Broken(f"{name} gave its model up, but its report on {order} does not count")
