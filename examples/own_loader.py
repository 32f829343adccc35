"""A larger example: a Dataset with random augmentation, a loss and metrics of one's own, AdamW, mixed precision.

shoal join URL --token TOKEN --learner examples/own_loader.py:learner --option part=0 --option noise=0.2
"""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import Dataset

from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.partition import held_back, iid


class Patients(Dataset[tuple[Tensor, Tensor]]):
    """442 patients, ten measurements of each, and how their diabetes progressed; `noise` varies what is trained on."""

    def __init__(self, chosen: Tensor, noise: float = 0.0) -> None:
        x, y = load_diabetes(return_X_y=True)
        self.x, self.y, self.noise = torch.tensor(x).float()[chosen] * 20, torch.tensor(y).float()[chosen] / 100, noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.x[at] + self.noise * torch.randn(10), self.y[at]  # the seed of each order reaches this too


class Network(nn.Module):
    """Ten inputs, one output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)


def learner(part: int = 0, parts: int = 4, noise: float = 0.1) -> TorchLearner:
    train, test = (torch.from_numpy(chosen) for chosen in held_back(iid(442, parts)[part], share=0.2))
    return TorchLearner(
        Network,
        Patients(train, noise),
        Patients(test),
        loss=nn.functional.mse_loss,
        metrics={"error": nn.functional.l1_loss},
        optimizer=lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr),
        config=TorchConfig(precision="bf16"),
    )
