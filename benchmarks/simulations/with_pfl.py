"""Simulated clients per processor second of pfl, on `simulated_work.py`: `with_pfl.py NETWORK CLIENTS`.

The first round, in which pfl evaluates, is not counted; the best of the others is. pfl takes batches in the order of
the data, so each client's data are shuffled when it is asked for, as all other ways shuffle them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise

os.environ["OMP_NUM_THREADS"] = "1"


import psutil
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from simulated_work import BATCH, LR, NETWORKS, examples

ROUNDS = 6


class Classifier(torch.nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


def shuffled(data: list[torch.Tensor], user: str) -> Dataset:
    """Return a client's data in a new order."""
    order = torch.randperm(len(data[0]))
    return Dataset(raw_data=[part[order] for part in data], user_id=user)


class Clock(TrainingProcessCallback):
    """Processor seconds after each round, with those of the process that draws clients."""

    def __init__(self) -> None:
        self.after: list[float] = []

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        others = psutil.Process().children(recursive=True)
        self.after.append(time.process_time() + sum(sum(one.cpu_times()[:2]) for one in others))
        return False, Metrics()


def main() -> None:
    """Simulate this many clients, and print."""
    network, clients = Classifier(NETWORKS[sys.argv[1]]()), int(sys.argv[2])
    torch.set_num_threads(1)
    data = {str(n): list(examples(n)) for n in range(clients)}
    users = FederatedDataset(lambda user: shuffled(data[user], user), get_user_sampler("minimize_reuse", list(data)))
    clock = Clock()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=0
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    print(json.dumps({"per_cpu_s": clients / float(min(later - earlier for earlier, later in pairwise(clock.after)))}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
