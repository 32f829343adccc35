"""Rounds of federated averaging to a target accuracy on MNIST, beside the published ones.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017: 100 clients of 600 examples, a tenth of them per round (C = 0.1), E = 5, B = 10; the CNN to 99 %
(Table 2) and the 2NN to 97 % (Table 1, which has E = 1 only), IID and with two classes per client.

    python benchmarks/fedavg_mnist.py --model cnn --split shards:2 --workers 2 --data FOLDER

A job of `shoal.simulate`, stopped by a callback. The data come from the cache (`shoal data get mnist`) or from a folder
of IDX files.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch

import shoal
from shoal.core.errors import ShoalError
from shoal.core.errors.phrases import size
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.learn import mnist
from shoal.results.callbacks import RoundCallback, StopSimulation

TARGETS = {"2nn": 0.97, "cnn": 0.99}
PAPER = {  # (model, split, E, B) at C = 0.1
    ("cnn", "iid", 5, 10): 20,
    ("cnn", "shards:2", 5, 10): 229,
    ("cnn", "iid", 1, 10): 34,
    ("cnn", "shards:2", 1, 10): 350,
    ("2nn", "iid", 1, 10): 87,
    ("2nn", "shards:2", 1, 10): 664,
}


class ToTarget(RoundCallback):
    """A callback that prints the rounds and ends the simulation at the target."""

    def __init__(self, target: float) -> None:
        self.target, self.best, self.rounds = target, 0.0, 0
        self._started = time.perf_counter()

    @property
    def is_reached(self) -> bool:
        """Return whether a model had the target accuracy."""
        return self.best >= self.target

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._started

    def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
        accuracy, loss = metrics["held_out/accuracy"], metrics["held_out/loss"]
        self.rounds, self.best = number, max(self.best, accuracy)
        line = f"round {number:4d}  accuracy {accuracy:.4f}  best {self.best:.4f}  loss {loss:.4f}"
        print(f"{line}  {self.seconds:7.1f} s", flush=True)
        if self.is_reached:
            raise StopSimulation(f"the target of {self.target:.1%} is reached")


def main() -> int:
    """Run one setting and print each round."""
    options = parsed()
    torch.backends.cudnn.allow_tf32 = False  # float32 as the paper's, and the same on every device
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return run(options)
    except ShoalError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return 1


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the four IDX files, plain or .gz (default: the cache)")
    parser.add_argument("--model", choices=sorted(TARGETS), default="2nn")
    parser.add_argument("--split", default="iid", help="iid, shards:2 (two classes per client) or dirichlet:ALPHA")
    parser.add_argument("--rounds", type=int, default=0, help="maximum number (default: 60 IID, 500 otherwise)")
    parser.add_argument("--target", type=float, default=0.0, help="stop at this accuracy (default: the paper's)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5, help="E")
    parser.add_argument("--batch-size", type=int, default=10, help="B")
    parser.add_argument("--clients", type=int, default=100, help="K")
    parser.add_argument("--fraction", type=float, default=0.1, help="C")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="", help="such as cuda (default: that of the machine)")
    parser.add_argument("--workers", type=int, default=1, help="processes that train")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Run federated averaging until the target is reached, and return 0 if it was."""
    folder, stop = str(options.data or ""), ToTarget(options.target or TARGETS[options.model])
    settings = {"parts": options.clients, "split": options.split, "seed": options.seed, "model": options.model}
    job = shoal.JobSpec(
        name="mnist",
        rounds=options.rounds or (60 if options.split == "iid" else 500),
        seed=options.seed,
        algorithm={"name": "fedavg", "epochs": options.epochs, "batch_size": options.batch_size, "lr": options.lr},
        schedule={"name": "rounds", "cohort": max(1, round(options.fraction * options.clients))},
    )
    print(
        f"MNIST {options.model}, {options.split}, K={options.clients} C={options.fraction} E={options.epochs} "
        f"B={options.batch_size} lr={options.lr} seed={options.seed}, to {stop.target:.1%}, torch {torch.__version__}",
        flush=True,
    )
    result = shoal.simulate(
        job,
        partial(mnist.learner, test_fraction=0, folder=folder, **settings),
        nodes=options.clients,
        held_out=mnist.held_out(options.model, folder),
        workers=options.workers,
        device=options.device,
        callbacks=[stop],
        progress=False,
    )
    print(f"\n{verdict(options, stop)}\n{size(sum(result.up_bytes.values()))} up; {result.training}")
    return 0 if stop.is_reached else 1


def verdict(options: argparse.Namespace, stop: ToTarget) -> str:
    """Return the rounds to the target beside the paper's."""
    published = [
        f"E={epochs} B={batch}: {rounds}"
        for (model, split, epochs, batch), rounds in PAPER.items()
        if (model, split) == (options.model, options.split)
    ]
    ours = f"{stop.rounds} rounds" if stop.is_reached else f"not reached (best {stop.best:.4f})"
    beside = f"; McMahan et al. 2017 (C=0.1, {TARGETS[options.model]:.0%}) {', '.join(published)}" if published else ""
    return f"{stop.target:.1%}: {ours} with E={options.epochs} B={options.batch_size}, {stop.seconds:.0f} s{beside}"


if __name__ == "__main__":
    sys.exit(main())
