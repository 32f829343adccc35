"""Speed, cost and bias of consensus among peers without a server.

python benchmarks/gossip.py consensus

`consensus`: peers with random models and log-normal weights mix, and do not train. In a round of a second each peer
has
one turn. Printed, as medians over seeds: rounds and models sent per peer until the weighted variance of the models is
1e-4 of its first value, and the bias: the distance of the final mean from the intended mean, in units of the root of
the first variance. The mixers are the product's own, on a simulated network; models are vectors of 32 numbers, with a
filter of 1,024 in single precision, and models sent count by their bytes relative to a model without a filter. 10 %
loss: of all messages, answers included. 30 % churn: in each round each peer is away with that chance, and the others
know it; its state stays. Timeouts are scaled to the round: 0.5 s for neighbors, 5 s for the next chunk of an
all-reduce, 0.2 s for a partner, 0.1 s until a message is sent again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

from shoal.core.algorithm.filter import Filters
from shoal.core.gossip.mixer import Mixing
from shoal.core.model.tree import Array, Tree
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.mixing_runs import MixingRun

VALUES, VALUES_FILTERED = 32, 1024
REACHED = 1e-4
WAIT = {"exchange_timeout_s": 0.5, "retransmit_s": 0.1}
METHODS: dict[str, Mixing] = {
    "pairwise": Pairwise(exchange_timeout_s=0.2, slot_timeout_s=0.5),
    "ring + MH": Neighbors("ring", **WAIT),
    "4-regular + MH": Neighbors("regular", **WAIT),
    "4-regular + MH, by examples": Neighbors("regular", target="examples", **WAIT),
    "one-peer exponential": Neighbors("exponential", **WAIT),
    "push-sum": PushSum(retransmit_s=0.1),
    "all-reduce": AllReduce(exchange_timeout_s=5.0, retransmit_s=0.1),
}
FILTERED: dict[str, Filters] = {"pairwise, bf16": (Half(),), "pairwise, 8 bits": (Quantize(),)}
METHODS |= dict.fromkeys(FILTERED, METHODS["pairwise"])
CONDITIONS = {"clean": (0.0, 0.0), "10 % loss": (0.1, 0.0), "30 % churn": (0.0, 0.3), "both": (0.1, 0.3)}


@dataclass(frozen=True)
class Cell:
    """One figure of the table. `rounds` is None when agreement was not reached."""

    method: str
    condition: str
    peers: int
    rounds: float | None
    models: float
    bias: float


@dataclass(frozen=True)
class Run:
    """One run of one cell."""

    method: str
    condition: str
    peers: int
    seed: int
    most: int

    def __call__(self) -> tuple[bool, int, float, float]:
        """Return (agreed, rounds, models sent per peer, bias)."""
        mixing, (loss, churn) = METHODS[self.method], CONDITIONS[self.condition]
        rng, chance = np.random.default_rng(self.seed), Random(f"away/{self.seed}")
        names = [f"n{number:03}" for number in range(self.peers)]
        filters = FILTERED.get(self.method, ())
        models = {name: Tree.of({"w": vector(rng, bool(filters))}) for name in names}
        weights = {name: float(np.exp(rng.normal())) for name in names}

        def away(_: int) -> Iterable[str]:
            return [name for name in names if chance.random() < churn]

        swarm = MixingRun(
            mixing, models, weights, conditions=PeerNetworkConditions(message_loss=loss), away=away, seed=self.seed
        )
        for holding in swarm.holdings.values():
            holding.filters = filters
        even = isinstance(mixing, Neighbors) and mixing.target == "uniform"
        target = dict.fromkeys(names, 1.0) if even else weights
        mean, first = swarm.mean(target), swarm.variance()
        while swarm.variance() > REACHED * first and swarm.rounds < self.most:
            swarm.round()
        bias = float(np.linalg.norm(swarm.mean(target) - mean) / np.sqrt(first))
        return swarm.variance() <= REACHED * first, swarm.rounds, swarm.models_sent, bias


def vector(rng: np.random.Generator, filtered: bool) -> Array:
    """Return a model's numbers, enough of them under a filter that its overhead weighs little."""
    found: Array = rng.normal(size=VALUES_FILTERED if filtered else VALUES)
    return found.astype(np.float32) if filtered else found


def performed(run: Run) -> tuple[Run, tuple[bool, int, float, float]]:
    return run, run()


def cells(runs: list[Run], workers: int) -> list[Cell]:
    """Run everything, and return the medians of each cell."""
    found: dict[tuple[str, str, int], list[tuple[bool, int, float, float]]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for run, outcome in pool.map(performed, runs):
            print(run, outcome, file=sys.stderr)
            found.setdefault((run.method, run.condition, run.peers), []).append(outcome)
    made = []
    for (method, condition, peers), outcomes in found.items():
        agreed = sum(outcome[0] for outcome in outcomes) * 2 > len(outcomes)
        rounds, models, bias = (median(outcome[at] for outcome in outcomes) for at in (1, 2, 3))
        made.append(Cell(method, condition, peers, rounds if agreed else None, models, bias))
    return made


def table(made: list[Cell], sizes: list[int], most: int) -> str:
    """Format rounds / models / bias, a row per method."""
    by_place = {(cell.method, cell.condition, cell.peers): cell for cell in made}
    shown = [condition for condition in CONDITIONS if any(cell.condition == condition for cell in made)]
    heads = [f"{condition}, n = {' · '.join(map(str, sizes))}" for condition in shown]
    rows = ["| method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for method in dict.fromkeys(cell.method for cell in made):
        texts = []
        for condition in shown:
            three = [by_place[method, condition, peers] for peers in sizes]
            texts.append(" · ".join(
                f"> {most} /{cell.models:.0f}" if cell.rounds is None
                else f"{cell.rounds:.0f}/{cell.models:.{0 if cell.models > 10 else 1}f}/{cell.bias:.3f}"
                for cell in three
            ))  # fmt: skip
        rows.append(f"| {method} | " + " | ".join(texts) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["consensus"])
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--seeds", type=int, default=8, help="runs per figure; with more than 32 peers: 3 (8)")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), metavar="CONDITION")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=400, help="maximum number of rounds (400)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers down too")
    given = parser.parse_args()
    started = time.monotonic()
    runs = [
        Run(method, condition, peers, seed, given.rounds)
        for method, condition, peers in product(given.methods, given.conditions, given.peers)
        for seed in range(given.seeds if peers <= 32 else min(3, given.seeds))
    ]
    made = cells(runs, given.workers)
    print("rounds / models sent per peer / bias, to 1e-4 of the initial variance\n")
    print(table(made, given.peers, given.rounds))
    print(f"\n{len(runs)} runs in {time.monotonic() - started:.0f} s")
    if given.json:
        given.json.write_text(json.dumps([asdict(cell) for cell in made], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
