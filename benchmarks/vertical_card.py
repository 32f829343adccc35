"""Card of vertical data (Ceballos et al. 2020) on MNIST: the left half of each picture at one party, the right half at
another.

    python benchmarks/shelf.py vertical --data FOLDER     FOLDER: the four files of MNIST; see `shoal data`

A head 392-64 for each half and a tail 128-64-10, five rounds of 375 steps of 32 examples by SGD with momentum 0.9, one
seed. Beside it the same network without parties, and the same with one half alone. With faults, messages are lost and
repeated, and all sides die in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from card_figure import Figure
from split_card import FAULTS, data, difference, momentum
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import TorchLearner
from shoal.learn.split.vertical_network import VerticalNetwork

ROUNDS, STEPS = 5, 375
JOB = shoal.VerticalJob(rounds=ROUNDS, steps=STEPS, batch_size=32, lr=0.02)
HALVES = ("left", "right")


def halves(images: Tensor, names: Sequence[str]) -> list[Tensor]:
    """Return these halves of the pictures, [pictures, 392] each."""
    rows = images.reshape(-1, 28, 28)
    found = {"left": rows[..., :14].flatten(1), "right": rows[..., 14:].flatten(1)}
    return [found[name] for name in names]


def learner(folder: str, names: Sequence[str] = HALVES) -> TorchLearner:
    """Return a learner of the network with these heads."""

    def network() -> nn.Module:
        heads = {name: nn.Sequential(nn.Linear(392, 64), nn.ReLU()) for name in names}
        tail = nn.Sequential(nn.Linear(64 * len(names), 64), nn.ReLU(), nn.Linear(64, 10))
        return VerticalNetwork(heads, tail)

    train, test = ((*halves(x, names), y) for x, y in data(folder))
    return TorchLearner(network, train, test, optimizer=momentum, device="cpu")


def centrally(folder: str, seed: int, names: Sequence[str] = HALVES) -> TorchLearner:
    """Return a learner after training without parties."""
    found = learner(folder, names)
    found.init(seed)
    found.train(
        TrainConfig(steps=ROUNDS * STEPS, batch_size=JOB.batch_size, batch_index=0, sequence_seed=seed, lr=JOB.lr)
    )
    return found


def figures(folder: str, seed: int) -> Iterator[Figure]:
    """Yield the figures of the card."""
    central = centrally(folder, seed)
    aim = central.evaluate()["eval/accuracy"]
    for labels in ("coordinator", "right"):
        job = replace(JOB, labels=labels, seed=seed)
        plain, faulty = (
            shoal.simulate_vertical(job, learner(folder), faults=faults, held_out=learner(folder))
            for faults in (None, FAULTS)
        )
        found = [difference(one.model, central.model()) for one in (plain, faulty)]
        shown = f"{found[0]:g}, {found[1]:g} with crashes"
        yield Figure(f"largest difference to central training, labels at {labels}", "0", shown, not any(found))
        yield Figure(
            f"accuracy, labels at {labels}", f"{aim:.4f} (central)", f"{plain.metrics['held_out/accuracy']:.4f}"
        )
        sent = sum(plain.up_bytes.values()) + sum(plain.down_bytes.values())
        yield Figure(f"MB sent, labels at {labels}", "", f"{sent / 1e6:.1f}")
    for name in HALVES:
        accuracy = centrally(folder, seed, (name,)).evaluate()["eval/accuracy"]
        yield Figure(f"accuracy, {name} half alone", "", f"{accuracy:.4f}")
