"""Large batches with and without LARS: MNIST, 2NN, three passes of 42 steps on 4,096 images (8 nodes with 512 each).

    python benchmarks/lars.py --data FOLDER     FOLDER: the four files of MNIST; see `shoal data`

You, Gitman, Ginsburg 2017. Prints the accuracy on the 10,000 test images, for three seeds.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import shoal
from shoal.core.errors import LearnerFailed
from shoal.jobs.spec import parse_job
from shoal.learn import mnist

NODES, STEPS, SEEDS = 8, 42, (0, 1, 2)
LARS: dict[str, Any] = {"lr": 80.0, "lars_coefficient": 0.001, "steps": STEPS}
SETTINGS: dict[str, dict[str, Any]] = {
    "rate of one small batch, 0.02": {"lr": 0.02},
    "times the root of 64": {"lr": 0.16},
    "times 64, warm-up": {"lr": 1.28, "warm_up": 14},
    "LARS": LARS,
    "LARS, warm-up": {**LARS, "warm_up": 5},
}


def accuracy(seed: int, folder: str, **algorithm: Any) -> float | None:
    """Return the accuracy of the last model; None if it diverged."""
    learners = {
        f"node-{part}": mnist.learner(part, NODES, seed=seed, test_fraction=0.0, folder=folder) for part in range(NODES)
    }
    method = {"name": "largebatch", "batch_size": 512, "linear_scaling": False, **algorithm}
    given = {"name": "lars", "rounds": STEPS, "seed": seed, "schedule": {"name": "rounds", "min_nodes": NODES}}
    try:
        result = shoal.simulate(parse_job({**given, "algorithm": method}), learners)
    except LearnerFailed:
        return None
    judge = mnist.held_out(folder=folder)
    judge.load(result.model)
    return judge.evaluate()["eval/accuracy"]


def main() -> None:
    """Print a line for each of the settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with MNIST's four files")
    folder = parser.parse_args().data
    torch.set_num_threads(1)
    for name, settings in SETTINGS.items():
        found = [accuracy(seed, folder, **settings) for seed in SEEDS]
        told = " | ".join("diverged" if one is None else f"{one:.4f}" for one in found)
        print(f"| {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
