"""A network that grows with its pictures: digits of 4x4 pixels, then of 8x8.

shoal simulate job.toml -o model.safetensors
python learner.py model.safetensors
"""

import sys
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

import shoal
from shoal.learn import GrowingLearner, TorchLearner
from shoal.learn.data import bundled
from shoal.learn.data.partition import iid, train_test_split

PIXELS, WIDTHS, DEPTHS = (4, 8, 8), (8, 16, 16), (1, 1, 2)

x, y = bundled.digits()
images, labels = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y, dtype=torch.int64)
train, test = train_test_split(np.arange(len(labels)), 0.2)


def network(stage: int) -> nn.Sequential:
    """Make the network of a stage. Layers of one name belong together."""
    before, layers = 1, dict[str, nn.Module]()
    for number in range(DEPTHS[stage]):
        layers[f"convolution_{number}"] = nn.Conv2d(before, WIDTHS[stage], 3, padding=1)
        layers[f"relu_{number}"], before = nn.ReLU(), WIDTHS[stage]
    layers |= {"pool": nn.AdaptiveAvgPool2d(4), "flat": nn.Flatten(), "scores": nn.Linear(16 * before, 10)}
    return nn.Sequential(OrderedDict(layers))


def learner(part: int = 0, parts: int = 3) -> GrowingLearner:
    own = train[iid(len(train), parts)[part]]

    def of_stage(stage: int) -> TorchLearner:
        seen = nn.functional.avg_pool2d(images, 8 // PIXELS[stage])
        return TorchLearner(lambda: network(stage), (seen[own], labels[own]), (seen[test], labels[test]))

    return GrowingLearner(of_stage, len(PIXELS))


if __name__ == "__main__":
    trained = shoal.load_model(sys.argv[1], into=network(2)).eval()
    with torch.no_grad():
        correct = (trained(images[test]).argmax(1) == labels[test]).float().mean()
    print(f"accuracy of the last network: {correct:.3f}")
