"""Vertical data in one file: two parties have half of each picture, and train one network with a head for each.

    python examples/vertical.py

They align their rows first, without telling each other which other pictures they have. The coordinator has the labels
and sees the outputs of the heads only.
"""

import torch
from torch import nn

import shoal
from shoal.learn import TorchLearner, digits
from shoal.learn.split.vertical_network import VerticalNetwork
from shoal.trust.intersection import SaltedIntersection


def network() -> nn.Module:
    heads = {name: nn.Sequential(nn.Linear(32, 16), nn.ReLU()) for name in ("left", "right")}
    return VerticalNetwork(heads, nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)))


def aligned(left: torch.Tensor, right: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return the rows of the pictures that both parties have: they know each picture by a number."""
    secret = b"a secret of both parties"
    ours, theirs = (SaltedIntersection([f"picture-{n}" for n in one.tolist()], secret) for one in (left, right))
    return ours.rows(theirs.masked()), theirs.rows(ours.masked())


def main() -> None:
    x, y = digits.digits()
    left, right = x.reshape(-1, 8, 8)[..., :4].flatten(1), x.reshape(-1, 8, 8)[..., 4:].flatten(1)
    of_left, of_right = (
        torch.arange(0, 1500),
        torch.arange(100, 1600).flip(0),
    )  # the pictures of each party, in its order
    rows, other_rows = aligned(of_left, of_right)
    train = left[of_left][rows], right[of_right][other_rows], y[of_left][rows]
    test = left[1600:], right[1600:], y[1600:]

    learner = TorchLearner(network, train, test)
    job = shoal.VerticalJob(rounds=3, epochs=2, batch_size=32, lr=0.3)
    result = shoal.simulate_vertical(job, learner, held_out=TorchLearner(network, train, test))
    print(f"{len(rows)} rows in common")
    print(result.events[0].text)
    print(f"accuracy {result.metrics['held_out/accuracy']:.3f}")


if __name__ == "__main__":
    main()
