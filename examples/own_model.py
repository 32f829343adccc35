"""Your own model in shoal: a model, data, a loss. Node number `part` of `parts` trains on its share of the tumours.

shoal simulate JOB.toml --learner examples/own_model.py:learner
shoal join URL --token TOKEN --learner examples/own_model.py:learner --option part=0
"""

from sklearn.datasets import load_breast_cancer
from torch import nn, tensor

from shoal.learn import TorchLearner
from shoal.learn.partition import held_back, iid

x, y = load_breast_cancer(return_X_y=True)  # 569 tumours, 30 measurements of each, benign or malignant
x, y = tensor((x - x.mean(0)) / x.std(0)).float(), tensor(y)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def learner(part: int = 0, parts: int = 4) -> TorchLearner:
    train, test = held_back(iid(len(y), parts)[part], share=0.2)
    return TorchLearner(network, (x[train], y[train]), (x[test], y[test]), loss=nn.CrossEntropyLoss())
