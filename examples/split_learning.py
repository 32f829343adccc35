"""Split learning in one file: two clinics train a network whose first layers they keep, with their labels.

    python examples/split_learning.py

The coordinator computes the layers between the two cuts and sees activations and gradients only.
"""

import torch
from torch import nn

import shoal
from shoal.learn import TorchLearner, digits


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def clinic(part: int) -> TorchLearner:
    x, y = digits.digits()
    return TorchLearner(network, (x[part:1600:2], y[part:1600:2]), (x[1600:], y[1600:]))


def shapes() -> TorchLearner:
    """Return the learner of a coordinator (docs/how-to/split-learning.md): with one example, of any values."""
    return TorchLearner(network, (torch.zeros(1, 64), torch.zeros(1, dtype=torch.long)))


def main() -> None:
    job = shoal.SplitJob(cut=(2, 4), labels="node", rounds=3, epochs=2, batch_size=32, lr=0.2)
    result = shoal.simulate_split(job, {"north": clinic(0), "south": clinic(1)}, held_out=clinic(0))
    print(result.events[0].text)
    print(result)
    print(f"accuracy {result.metrics['held_out/accuracy']:.3f}")


if __name__ == "__main__":
    main()
