"""A model, data and a loss in shoal. Node number `part` of `parts` trains on its part of the tumours.

shoal simulate job.toml
shoal join URL --token TOKEN --learner learner.py --option part=0
"""

from pathlib import Path

import numpy as np
from torch import nn, tensor

from shoal.learn import TorchLearner
from shoal.learn.data.partition import iid, train_test_split

table = np.loadtxt(Path(__file__).with_name("tumours.csv"), delimiter=",")
x, y = table[:, :-1], table[:, -1]  # 569 tumours, 30 measurements of each, benign or malignant
x, y = tensor((x - x.mean(0)) / x.std(0)).float(), tensor(y).long()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def learner(part: int = 0, parts: int = 4) -> TorchLearner:
    train, test = train_test_split(iid(len(y), parts)[part], test_fraction=0.2)  # a real node loads its own data here
    return TorchLearner(network, (x[train], y[train]), (x[test], y[test]), loss=nn.CrossEntropyLoss())
