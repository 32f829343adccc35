"""One network over devices, an edge server and the cloud, with an exit at each.

A site has four devices, and each sees a part of a digit of 8x8 pixels. Three sites train the network together.

shoal simulate job.toml -o model.safetensors
python learner.py model.safetensors
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import shoal
from shoal.learn.data import bundled
from shoal.learn.data.partition import iid, train_test_split
from shoal.learn.exits import ExitLevel, ExitNetwork, answer, choose_by_accuracy, exit_learner, record_exits
from shoal.learn.training.torch_learner import TorchLearner

x, y = bundled.digits()
images, labels = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y, dtype=torch.int64)
parts = [images[..., row : row + 5, column : column + 5] for row in (0, 3) for column in (0, 3)]
views = torch.stack(parts, 1)  # [examples, devices, 1, 5, 5]
others, test = train_test_split(np.arange(len(labels)), 0.2)
train, validation = (others[part] for part in train_test_split(np.arange(len(others)), 0.2))


def device() -> ExitLevel:
    """Make the part of one device: 36 features of one bit, and scores."""
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    return ExitLevel(body, nn.Sequential(nn.Flatten(), nn.Linear(36, 10)))


def network() -> ExitNetwork:
    edge = ExitLevel(
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)),
    )
    cloud = nn.Sequential(nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10))
    return ExitNetwork([device() for _ in range(4)], edge, cloud, classes=10, scheme="AP-CC", absence=0.1)


def learner(part: int = 0, parts: int = 3) -> TorchLearner:
    own = train[iid(len(train), parts)[part]]
    return exit_learner(network, (views[own], labels[own]), (views[validation], labels[validation]), curve=True)


def told(trained: ExitNetwork, thresholds: tuple[float, ...]) -> str:
    """Return the results on the test data, answered level by level."""
    found = answer(trained, [views[test]], thresholds)
    answered = [float(np.mean(found.exits == number)) for number in range(3)]
    correct = Tensor(found.classes == labels[test].numpy()).mean()
    shares = ", ".join(f"{level} {part:.0%}" for level, part in zip(trained.levels, answered, strict=True))
    return f"accuracy {correct:.3f}, {found.sent / len(test):.0f} bytes per answer; answered by {shares}"


if __name__ == "__main__":
    trained = shoal.load_model(sys.argv[1], into=network())
    record = record_exits(trained, [views[validation]], labels[validation])
    thresholds = choose_by_accuracy(record, loss_max=0.0)
    print("all devices:   ", told(trained, thresholds))
    trained.leave_out([0])
    print("without one:   ", told(trained, thresholds))
    trained.leave_out()
    print("cloud for all: ", told(trained, (0.0, 0.0)))
