"""A larger example: a Dataset with random augmentation, custom loss and metrics, AdamW, mixed precision.

shoal join URL --token TOKEN --learner loader.py --option part=0 --option noise=0.2
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.data.partition import iid, train_test_split

TABLE = np.loadtxt(Path(__file__).with_name("tumours.csv"), delimiter=",")
AREA = 3  # the column that is predicted from the other 29: the mean area of the nuclei


class Tumours(Dataset[tuple[Tensor, Tensor]]):
    """569 tumours: 29 standardized measurements of each, and the area of its nuclei; `noise` varies training."""

    def __init__(self, chosen: Tensor, noise: float = 0.0) -> None:
        table = torch.tensor((TABLE - TABLE.mean(0)) / TABLE.std(0)).float()[chosen, :-1]
        self.x, self.y, self.noise = torch.cat([table[:, :AREA], table[:, AREA + 1 :]], 1), table[:, AREA], noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.x[at] + self.noise * torch.randn(29), self.y[at]  # the seed of each task reaches this too


class Network(nn.Module):
    """29 inputs, one output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(29, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)


def learner(part: int = 0, parts: int = 4, noise: float = 0.1) -> TorchLearner:
    train, test = (
        torch.from_numpy(chosen) for chosen in train_test_split(iid(len(TABLE), parts)[part], test_fraction=0.2)
    )
    return TorchLearner(
        Network,
        Tumours(train, noise),
        Tumours(test),
        loss=nn.functional.mse_loss,
        metrics={"error": nn.functional.l1_loss},
        optimizer=lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr),
        config=TorchConfig(precision="bf16"),
    )
