"""One table of all methods that a coordinator runs: what they reach, what they send, and what a straggler costs.

    python benchmarks/shelf.py                      all of them, some minutes
    python benchmarks/shelf.py --only fedavg scaffold
    python benchmarks/shelf.py split --data FOLDER  a card of its own: split, ddnn, growing, psi, vertical

The embedded digits (1,438 to train on, 359 to test) on ten nodes with two label shards each, a small MLP, one seed, on
a simulated clock where a task takes a second; with a straggler, one of the ten takes ten seconds. Rows are not tuned
against each other: each has the settings that its paper or our study names for data of this size. "s to 85 %" is the
virtual time of the first version at 85 % on the test digits, of a job that runs as many versions as the row says.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner, digits

NODES, SEED, TARGET = 10, 1, 0.85
FIVE: dict[str, Any] = {"epochs": 5, "batch_size": 10, "lr": 0.1}


@dataclass(frozen=True)
class Row:
    """A method and its settings."""

    name: str
    versions: int
    algorithm: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=lambda: {"name": "rounds", "min_nodes": NODES})
    filters: tuple[dict[str, Any], ...] = ()
    label: str = ""

    @property
    def title(self) -> str:
        """Return the row's title."""
        return self.label or self.name


def buffered(size: int) -> dict[str, Any]:
    """Return a buffer schedule of that size."""
    return {"name": "buffer", "size": size, "min_nodes": NODES}


ROUNDS = [
    Row("fedsgd", 100, {"lr": 0.5}),
    Row("fedavg", 30, FIVE),
    Row("fedavg", 8, FIVE, label="fedavg, 8 rounds"),
    Row("fedprox", 30, {**FIVE, "mu": 0.1}),
    Row("fedprox", 30, {**FIVE, "mu": 0.1, "partial_work_fraction": 0.9}, label="fedprox, 90 % in part"),
    Row("fedavgm", 30, {**FIVE, "server_lr": 0.5, "beta": 0.7}),
    Row("fedadagrad", 30, {**FIVE, "server_lr": 0.1}),
    Row("fedadam", 30, {**FIVE, "server_lr": 0.03}),
    Row("fedyogi", 30, {**FIVE, "server_lr": 0.03}),
    Row("scaffold", 30, FIVE),
    Row("admm", 30, {**FIVE, "rho": 0.1, "over_relaxation": 1.0}),
    Row("lbfgs", 60, {"weight_decay": 1e-3}),
    Row("largebatch", 300, {"batch_size": 10, "lr": 0.02, "warm_up": 20}),
    Row("codistillation", 30, FIVE),
]
BUFFERED = [
    Row("asgd", 1500, {"batch_size": 10}, buffered(1)),
    Row("asgd", 300, {"batch_size": 10}, buffered(5), label="asgd, 2-softsync"),
    Row("downpour", 1500, {"batch_size": 10, "lr": 0.05}, buffered(1)),
    Row("fedasync", 300, FIVE, buffered(1)),
    Row("fedbuff", 60, FIVE, buffered(5)),
]
LONG: dict[str, Any] = {"lr": 0.1, "local_steps": 2250}
"""As many mini-batches as 30 rounds of five epochs."""

DRIFTING = [
    Row("dynamic", 0, {"lr": 0.1, "local_steps": 600}, {"name": "divergence", "min_nodes": NODES}),
    Row("periodic", 0, {"lr": 0.1, "local_steps": 600}, {"name": "periodic", "min_nodes": NODES}),
    Row("fda", 0, {"lr": 0.1, "local_steps": 600}, {"name": "variance", "min_nodes": NODES}),
    Row("dynamic", 0, LONG, {"name": "divergence", "min_nodes": NODES}, label="dynamic, 225 checks"),
    Row("fda", 0, LONG, {"name": "variance", "min_nodes": NODES}, label="fda, 225 checks"),
]
FILTERED = [
    Row("fedavg", 30, FIVE, filters=({"name": "half"},), label="fedavg, bf16"),
    Row("fedavg", 30, FIVE, filters=({"name": "quantize"},), label="fedavg, 8 bits"),
    Row("fedavg", 30, FIVE, filters=({"name": "delta"}, {"name": "quantize"}), label="fedavg, 8 bits both ways"),
    Row("fedavg", 30, FIVE, filters=({"name": "top_k", "fraction": 0.05},), label="fedavg, top 5 %"),
]
SHELF = [*ROUNDS, *BUFFERED, *DRIFTING, *FILTERED]
CARDS = {
    "ddnn": "ddnn",
    "growing": "growing",
    "psi": "psi_card",
    "split": "split_card",
    "vertical": "vertical_card",
}
"""Cards with a measurement of their own: the modules beside this one, each with `figures(folder, seed)`."""


def learners() -> dict[str, TorchLearner]:
    """Return the same learners for every row."""
    return {f"node-{part}": digits.learner(part, NODES, split="shards:2", seed=SEED) for part in range(NODES)}


def run(row: Row, slow: dict[str, float]) -> shoal.Result:
    """Run one method's job."""
    algorithm = {"name": row.name, **row.algorithm}
    given: dict[str, Any] = {"name": "shelf", "seed": SEED, "algorithm": algorithm, "schedule": row.schedule}
    job = parse_job({**given, "rounds": row.versions, "filters": list(row.filters)})
    return shoal.simulate(job, learners(), held_out=digits.held_out(), slow=slow)


def reached(result: shoal.Result) -> float | None:
    """Return the virtual seconds to the target; None if it was not reached."""
    times = [one.closed_s for one in result.versions if one.metrics.get("held_out/accuracy", 0.0) >= TARGET]
    return times[0] if times else None


def measured(row: Row) -> dict[str, Any]:
    """Return a line of the table, as numbers."""
    plain, slowed = run(row, {}), run(row, {"node-0": 10.0})
    return {
        "method": row.title,
        "accuracy": plain.versions[-1].metrics["held_out/accuracy"],
        "accuracy, straggler": slowed.versions[-1].metrics["held_out/accuracy"],
        "up_bytes": sum(plain.up_bytes.values()),
        "down_bytes": sum(plain.down_bytes.values()),
        "versions": plain.versions[-1].number,
        "seconds": plain.versions[-1].closed_s,
        "seconds, straggler": slowed.versions[-1].closed_s,
        "to target": reached(plain),
        "to target, straggler": reached(slowed),
    }


def line(row: dict[str, Any]) -> str:
    """Return a line of the table, as text."""
    up, down = (row[f"{way}_bytes"] / 1e6 for way in ("up", "down"))
    there = [f"{row[name]:.0f}" if row[name] is not None else "never" for name in ("to target", "to target, straggler")]
    return (
        f"| {row['method']} | {row['accuracy']:.3f} | {row['accuracy, straggler']:.3f} | {up:.2f} | {down:.2f} "
        f"| {row['versions']} | {row['seconds']:.0f} | {row['seconds, straggler']:.0f} | {there[0]} | {there[1]} |"
    )


HEAD = (
    "| method | accuracy | with a straggler | MB up | MB down | versions | s | s with a straggler | s to 85 % "
    "| with a straggler |\n|---|---|---|---|---|---|---|---|---|---|"
)


def methods(only: list[str] | None) -> list[dict[str, Any]]:
    """Print the table of the methods, and return its numbers; nothing if there are none of these names."""
    rows = [row for row in SHELF if not only or row.name in only]
    if rows:
        print(HEAD, flush=True)
    found = []
    for row in rows:
        found.append(measured(row))
        print(line(found[-1]), flush=True)
    return found


def card(name: str, folder: str, seed: int) -> list[dict[str, Any]]:
    """Print what a card asks for beside the measured numbers, and return them."""
    print("| figure | card | measured | reached |\n|---|---|---|---|", flush=True)
    found = []
    for figure in import_module(CARDS[name]).figures(folder, seed):
        said = {None: "", True: "yes", False: "no"}[figure.reached]
        print(f"| {figure.name} | {figure.card} | {figure.measured} | {said} |", flush=True)
        found.append(figure._asdict())
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", nargs="?", choices=CARDS, help="a card to measure, instead of the methods")
    parser.add_argument("--data", default="", metavar="FOLDER", help="the files of the card's data set")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the card's weights and data")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these rows alone, by method")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = card(given.card, given.data, given.seed) if given.card else methods(given.only)
    if not found:
        print(f"no such method; known: {', '.join(sorted({row.name for row in SHELF}))}", file=sys.stderr)
        return 2
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
