"""Rounds of federated averaging to a target accuracy on MNIST, beside the published ones.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017: 100 clients of 600 examples, a tenth of them per round (C = 0.1), E = 5, B = 10; the CNN to 99 %
(Table 2) and the 2NN to 97 % (Table 1, which has E = 1 only), IID and with two classes per client.

    python benchmarks/fedavg_mnist.py --model cnn --split shards:2 --device cuda --data FOLDER

Needs numpy and torch only. The data come from the cache (`shoal data get mnist`) or from a folder of IDX files. The
algorithm is the product's own; clients train one by one through `TorchLearner`, or several at once
(`shoal.learn.stacked.stacked_training`). The first round is computed both ways, the difference is printed, and the
faster one goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.algorithm import LocalTask, Update, tree_slot
from shoal.core.algorithm.learner import Trained
from shoal.core.errors import ShoalError
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, norm, sub
from shoal.learn import mnist
from shoal.learn.stacked.stacked_training import train_stacked
from shoal.learn.training.torch_learner import TorchLearner

TARGETS = {"2nn": 0.97, "cnn": 0.99}
PAPER = {  # (model, split, E, B) at C = 0.1
    ("cnn", "iid", 5, 10): 20,
    ("cnn", "shards:2", 5, 10): 229,
    ("cnn", "iid", 1, 10): 34,
    ("cnn", "shards:2", 1, 10): 350,
    ("2nn", "iid", 1, 10): 87,
    ("2nn", "shards:2", 1, 10): 664,
}


@dataclass(frozen=True)
class Client:
    """One client asked in a round: its number, learner and seed."""

    number: int
    learner: TorchLearner
    seed: int


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
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients-per-batch", type=int, default=10, help="how many train at once; 1: one by one only")
    parser.add_argument("--path", choices=["faster", "sequential", "stacked"], default="faster")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Run federated averaging until the target is reached, and return 0 if it was."""
    learners, judge = made(options)
    algorithm = FedAvg(epochs=options.epochs, batch_size=options.batch_size, lr=options.lr)
    target = options.target or TARGETS[options.model]
    most = options.rounds or (60 if options.split == "iid" else 500)
    rng = np.random.default_rng(options.seed)
    slots = algorithm.init(judge.init(options.seed))
    path, best, reached, started = options.path, 0.0, None, time.perf_counter()
    print(heading(options, judge, target), flush=True)
    for version in range(1, most + 1):
        clients = sampled(learners, options.fraction, rng)
        if version == 1 and options.clients_per_batch > 1:
            path = compared(algorithm, slots, clients, options)
        totals = Totals()
        updates = trained(algorithm, slots, clients, options.clients_per_batch if path == "stacked" else 1)
        for update in updates:
            totals = algorithm.fold(totals, update, 1.0)
        slots = algorithm.step(slots, totals)
        judge.load(tree_slot(slots, "model"))
        measured = judge.evaluate()
        accuracy = measured["eval/accuracy"]
        best = max(best, accuracy)
        line = f"round {version:4d}  accuracy {accuracy:.4f}  best {best:.4f}  loss {measured['eval/loss']:.4f}"
        print(f"{line}  {time.perf_counter() - started:7.1f} s", flush=True)
        if accuracy >= target:
            reached = version
            break
    print(verdict(options, target, reached, best, time.perf_counter() - started))
    return 0 if reached else 1


def made(options: argparse.Namespace) -> tuple[list[TorchLearner], TorchLearner]:
    """Return a learner per client without test data, and one that evaluates on the 10,000 test images."""
    folder = str(options.data or "")
    learners = [
        mnist.learner(
            part,
            options.clients,
            split=options.split,
            seed=options.seed,
            model=options.model,
            test_fraction=0,
            folder=folder,
        )
        for part in range(options.clients)
    ]
    judge = mnist.held_out(options.model, folder)
    for learner in (*learners, judge):
        learner.use(device=options.device)
    return learners, judge


def sampled(learners: Sequence[TorchLearner], fraction: float, rng: np.random.Generator) -> list[Client]:
    """Draw a round's clients without replacement, each with a seed of its own."""
    count = max(1, round(fraction * len(learners)))
    numbers = sorted(rng.choice(len(learners), count, replace=False).tolist())
    return [Client(number, learners[number], int(rng.integers(2**62))) for number in numbers]


def trained(algorithm: FedAvg, slots: Slots, clients: Sequence[Client], at_once: int) -> list[Update]:
    """Return the updates of a round, one client at a time or several at once."""
    found = []
    for start in range(0, len(clients), at_once):
        some = clients[start : start + at_once]
        found += one_by_one(algorithm, slots, some) if len(some) == 1 else together(algorithm, slots, some)
    return found


def one_by_one(algorithm: FedAvg, slots: Slots, clients: Sequence[Client]) -> list[Update]:
    """Train as an edge client does with a task."""
    updates = []
    for client in clients:
        local = algorithm.local(client.learner, task(client, slots), {})
        if local is not None:
            updates.append(update(client, Trained(local.weight), tree_slot(local.slots, "model")))
    return updates


def together(algorithm: FedAvg, slots: Slots, clients: Sequence[Client]) -> list[Update]:
    """Train several clients at once, stacked."""
    base = tree_slot(slots, "model")
    budgets = [algorithm.train_config(task(client, slots)) for client in clients]
    results = train_stacked([client.learner for client in clients], base, budgets)
    return [update(client, done, sub(model, base)) for client, (done, model, *_) in zip(clients, results, strict=True)]


def task(client: Client, slots: Slots) -> LocalTask:
    """Return a client's task."""
    return LocalTask((0, 0), "train", 0, client.seed, slots)


def update(client: Client, done: Trained, displacement: Tree) -> Update:
    """Return a client's update."""
    return Update(str(client.number), 0, done.weight, {"model": displacement}, norm(displacement))


def compared(algorithm: FedAvg, slots: Slots, clients: Sequence[Client], options: argparse.Namespace) -> str:
    """Compute one round both ways, print the difference and the times, and choose."""
    trained(algorithm, slots, clients[:1], 1)  # the first use of a device takes long
    before = time.perf_counter()
    alone = trained(algorithm, slots, clients, 1)
    between = time.perf_counter()
    stacked = trained(algorithm, slots, clients, options.clients_per_batch)
    after = time.perf_counter()
    differences = sorted(
        max(float(np.max(np.abs(mine[name] - theirs[name]))) for name in mine)
        for mine, theirs in (
            (tree_slot(a.slots, "model"), tree_slot(b.slots, "model")) for a, b in zip(alone, stacked, strict=True)
        )
    )
    seconds = {"sequential": between - before, "stacked": after - between}
    path = min(seconds, key=seconds.__getitem__) if options.path == "faster" else options.path
    print(
        f"one round: one by one {seconds['sequential']:.2f} s, {options.clients_per_batch} at once "
        f"{seconds['stacked']:.2f} s; going on {path}\n"
        f"greatest difference of a weight between the two: {differences[len(differences) // 2]:.1e} in the "
        f"median client, {differences[-1]:.1e} in the worst (rounding; a ReLU at its kink magnifies it)\n"
    )
    return path


def heading(options: argparse.Namespace, judge: TorchLearner, target: float) -> str:
    """Return the table's heading."""
    return (
        f"MNIST {options.model} ({judge.weights.layout.elements:,} parameters), {options.split}, K={options.clients} "
        f"C={options.fraction} E={options.epochs} B={options.batch_size} lr={options.lr} seed={options.seed}, "
        f"to {target:.1%} on {judge.device}, torch {torch.__version__}"
    )


def verdict(options: argparse.Namespace, target: float, reached: int | None, best: float, seconds: float) -> str:
    """Return the rounds to the target beside the paper's."""
    published = [
        f"E={epochs} B={size}: {rounds}"
        for (model, split, epochs, size), rounds in PAPER.items()
        if (model, split) == (options.model, options.split)
    ]
    ours = f"{reached} rounds" if reached else f"not reached (best {best:.4f})"
    beside = f"; McMahan et al. 2017 (C=0.1, {TARGETS[options.model]:.0%}) {', '.join(published)}" if published else ""
    return f"\n{target:.1%}: {ours} with E={options.epochs} B={options.batch_size}, {seconds:.0f} s{beside}"


if __name__ == "__main__":
    sys.exit(main())
