"""A small convolutional network on folders of images, with augmentation. Each node has some of the images."""

import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.learn import TorchLearner
from shoal.learn.data.images import images
from shoal.learn.data.partition import iid, train_test_split

FOLDER = Path(__file__).with_name("shapes")
CLASSES = ["cross", "disc", "square"]


def flipped(pixels: Any) -> Any:
    """Mirror half of the images, and make them brighter or darker; the seed of each task reaches this."""
    mirrored = pixels[:, :, ::-1] if random.random() < 0.5 else pixels
    return mirrored * random.uniform(0.7, 1.3)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 4 * 4, len(CLASSES)),
    )  # fmt: skip


def learner(part: int = 0, parts: int = 3) -> TorchLearner:
    plain = images(FOLDER, (16, 16), classes=CLASSES)
    train, test = train_test_split(iid(len(plain), parts)[part], test_fraction=0.25)
    augmented = images(FOLDER, (16, 16), classes=CLASSES, augment=flipped)[train]
    return TorchLearner(network, augmented, plain[test], optimizer=torch.optim.Adam)
