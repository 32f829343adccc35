"""Accuracy of low-rank adapters averaged in three ways, on digits that 8 nodes hold unequally; simulated.

python benchmarks/adapters.py

The frozen base model was trained on the digits 0 to 4; adapters of rank 4 must learn the others. `plain`: the factors
are averaged one by one (fedavg). `flexlora`: their products. `frozen A`: B alone is trained (FFA-LoRA). Printed for
each Dirichlet parameter, number of local epochs and seed: accuracy on held-out digits after 5 and after 15 rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import arguments, show
from torch import Tensor, nn

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner
from shoal.learn.data import bundled
from shoal.learn.data.partition import dirichlet

NODES, RANK, ROUNDS, EARLY = 8, 4, 15, 5
WAYS = {"plain": ("fedavg", False), "flexlora": ("flexlora", False), "frozen A": ("fedavg", True)}


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter (Hu et al. 2022), alpha twice the rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output and the adapter's."""
        out: Tensor = self.base(x) + 2 * self.lora_B(self.lora_A(x))
        return out


def plain_network() -> nn.Sequential:
    """Return the network without adapters."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def adapted_network(state: dict[str, Tensor], freeze_a: bool) -> nn.Module:
    """Return the network of a frozen base model and adapters."""
    network = plain_network()
    network.load_state_dict(state)
    network.requires_grad_(False)
    adapted = nn.Sequential(Adapted(network[0]), network[1], Adapted(network[2]))
    if freeze_a:
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_("lora_B" in name)
    return adapted


def base_model(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the weights of a network that knows the digits 0 to 4."""
    torch.manual_seed(1)
    network, known = plain_network(), y < 5
    optimizer = torch.optim.SGD(network.parameters(), 0.3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[known]), y[known]).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def main() -> int:
    """Measure, and print."""
    options = arguments(__doc__).parse_args()
    images, labels = bundled.digits()
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order], dtype=torch.int64)
    network = partial(adapted_network, base_model(x[:1400], y[:1400]))
    rows = []
    for alpha in (0.1, 0.5):
        for epochs in (2, 10):
            for seed in (1, 2):
                row: dict[str, Any] = {"alpha": alpha, "epochs": epochs, "seed": seed}
                parts = dirichlet(y[:1400].numpy(), NODES, alpha=alpha, seed=seed)
                rows.append(row | accuracies(network, x, y, parts, epochs, seed))
    show("adapters", rows, options.json)
    return 0


def accuracies(
    network: Callable[[bool], nn.Module], x: Tensor, y: Tensor, parts: Any, epochs: int, seed: int
) -> dict[str, str]:
    """Return the accuracies of each way."""
    found = {}
    for way, (algorithm, freeze_a) in WAYS.items():
        make = partial(network, freeze_a)
        job = {"name": "adapters", "rounds": ROUNDS, "seed": seed}
        job |= {"algorithm": {"name": algorithm, "lr": 0.05, "epochs": epochs, "batch_size": 16}}
        learners = [TorchLearner(make, (x[part], y[part])) for part in parts if len(part)]
        held_out = TorchLearner(make, (x[:10], y[:10]), (x[1400:], y[1400:]))
        versions = shoal.simulate(parse_job(job), learners, held_out=held_out, progress=False).versions
        after = [versions[number].metrics["held_out/accuracy"] for number in (EARLY, ROUNDS)]
        found[way] = " → ".join(f"{value:.3f}" for value in after)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
