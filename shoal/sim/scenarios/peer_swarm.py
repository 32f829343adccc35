"""Many small runs of peers without a server, each drawn from its seed: another way of mixing, other faults.

A run in which the books do not balance, or that does not end, raises `Broken` with the one command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm import Algorithm
from shoal.core.drain import Drain
from shoal.core.errors import ShoalError
from shoal.core.filter import Filter
from shoal.core.gossip import Mixing
from shoal.core.message import Ref
from shoal.core.peer_message import PeerMessage
from shoal.core.plan import Plan
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbours import GraphName, Neighbours
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.sim.anchored import Violation
from shoal.sim.flock import Flock
from shoal.sim.liars import Wire
from shoal.sim.mesh import Split, Weather
from shoal.sim.peers import Shared
from shoal.sim.swarm import Broken
from shoal.sim.toys import ToyLearner, toy_tree

ROUND_S = 60.0
"""After the faults have ended a run has this long for each local round, and `GRACE_S`, to end."""

GRACE_S = 600.0

STEPS_MAX = 60_000
"""No run needs half of that; one that does goes round in circles."""


@dataclass(frozen=True)
class Scenario:
    """One run: who takes part, how they mix, and what goes wrong."""

    seed: int
    mixing: Mixing
    weights: dict[str, float]
    pace_s: dict[str, float]
    rounds: int
    weather: Weather
    crashes: int
    """How often each process dies, between any two of its effects."""
    near: float = 0.9
    """See `Drain`: no matter how near, as what is looked for happens before the end."""
    filters: tuple[Filter, ...] = ()
    """What models go through that peers show each other."""
    liar: str = ""
    """Who lies about what it counts; empty: nobody."""


FILTERS: tuple[tuple[Filter, ...], ...] = ((Half(),), (Half("fp16"),), (Quantize(),), (Quantize(bucket=2),))


def draw(seed: int) -> Scenario:
    """The run of that seed."""
    rng = Random(seed)
    names = [f"n{number}" for number in range(1, rng.randint(2, 8) + 1)]
    until_s = rng.choice((5.0, 20.0, 60.0))
    split = Split(frozenset(rng.sample(names, len(names) // 2)), 3.0, 12.0)
    mixing = rng.choice((draw_pairwise, draw_neighbours, draw_push_sum, draw_all_reduce))(rng)
    liars = Random(f"liars of {seed}")
    liar = liars.choice(names) if len(names) > 2 and liars.random() < 0.2 else ""
    if mixing.name == "all_reduce":
        liar = ""  # a liar on the ring keeps it from closing: until it is removed, models do not become one
    filters = Random(f"filters of {seed}").choice((*FILTERS, (), (), (), ())) if mixing.filtered else ()
    return Scenario(
        seed,
        mixing,
        {name: float(rng.choice((1, 10, 359))) for name in names},
        {name: rng.choice((0.3, 1.0, 2.0)) for name in names},
        rng.randint(3, 15),
        Weather(
            until_s=until_s,
            delay_s=rng.choice((0.0, 0.02, 0.3, 2.0)),
            loss=rng.choice((0.0, 0.02, 0.1, 0.3)),
            duplicate=rng.choice((0.0, 0.1, 0.4)),
            slow=rng.choice((0.0, 0.0, 0.1)),
            splits=(split,) if rng.random() < 0.3 else (),
        ),
        rng.choice((0, 0, 1, 4)),
        filters=filters,
        liar=liar,
    )


def draw_pairwise(rng: Random) -> Mixing:
    """Within its budget or not, with the trigger or without."""
    return Pairwise(models_per_round=rng.choice((2.0, 0.7)), delta=rng.choice((0.0, 0.0, 1.0)))


def draw_neighbours(rng: Random) -> Mixing:
    """Any graph."""
    graphs: tuple[GraphName, ...] = ("ring", "torus", "regular", "complete", "exponential")
    graph = rng.choice(graphs)
    return Neighbours(
        graph,
        degree=rng.randint(2, 4),
        seed=rng.getrandbits(16),
        target="examples" if rng.random() < 0.5 and graph != "exponential" else "uniform",
        patience_s=rng.choice((0.5, 5.0, 20.0)),
    )


def draw_push_sum(rng: Random) -> Mixing:
    """With much or little mass kept."""
    return PushSum(floor=rng.choice((0.01, 0.25, 1.0)))


def draw_all_reduce(rng: Random) -> Mixing:
    """With patience and without."""
    return AllReduce(patience_s=rng.choice((1.0, 5.0, 20.0)))


class Told(Flock):
    """A flock of which every message is told."""

    def __init__(self, tell: Callable[[str], None], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._tell = tell

    def _send(self, source: str, target: str, message: PeerMessage) -> None:
        self._tell(f"{self.clock.now:9.3f}  {source} -> {target}  {described(message)}")
        super()._send(source, target, message)


def described(message: PeerMessage) -> str:
    """A message in a line, bodies by the beginning of their names."""
    parts = []
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name not in {"node", "seen"}:
            parts.append(f"{field.name}={value.digest[:6] if isinstance(value, Ref) else value}")
    return f"{type(message).__name__}({', '.join(parts)})"


def run(scenario: Scenario, tell: Callable[[str], None] | None = None) -> Flock:
    """Run it to its end; `tell` takes a line for each message. Raises `Violation` or `Unbalanced`."""
    shared = Shared(
        Plan(1, seed=scenario.seed),
        Algorithm(),
        scenario.mixing.mixer,
        {"model": toy_tree((1.0, 2.0, 3.0), 0)},
        Drain(scenario.rounds, near=scenario.near),
        scenario.seed,
        filters=scenario.filters,
    )
    learners = {name: ToyLearner(number) for number, name in enumerate(scenario.weights, 1)}
    kind: Callable[..., Flock] = Flock if tell is None else partial(Told, tell)
    flock = kind(
        shared, learners, scenario.weights, scenario.pace_s, weather=scenario.weather, crashes=scenario.crashes
    )
    if scenario.liar:
        flock.wire = Wire(scenario.liar, list(scenario.weights), Random(f"lies of {scenario.seed}"))
    if not flock.run(scenario.weather.until_s + GRACE_S + ROUND_S * scenario.rounds, STEPS_MAX):
        rounds = {name: peer.gossip.me.round for name, peer in flock.peers.items() if peer.gossip is not None}
        raise Violation(
            f"ends: after {flock.clock.now:.0f} s and {flock.clock.steps} steps the rounds are {rounds} "
            f"of {scenario.rounds}"
        )
    if flock.wire is not None and flock.wire.unreadable:
        sender, why = flock.wire.unreadable[0]
        raise Violation(f"muted: {len(flock.wire.unreadable)} messages of honest peers, first of {sender}: {why}")
    return flock


def run_seed(seed: int, tell: Callable[[str], None] | None = None) -> Flock:
    """The run of that seed. Raises `Broken`."""
    try:
        return run(draw(seed), tell)
    except (AssertionError, ShoalError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Broken(
            f"seed {seed}: {type(error).__name__}: {error}\nrepeat it: python -m shoal.sim --peers {seed} --trace"
        ) from error
