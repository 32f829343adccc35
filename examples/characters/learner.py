"""A model of characters: predicts the next letter of a poem. Each node has a poem of its own.

shoal simulate job.toml
python write.py characters.safetensors "When "
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from shoal.learn import TorchLearner
from shoal.learn.data.partition import train_test_split

POEMS = Path(__file__).with_name("sonnets.txt").read_text(encoding="utf-8").split("\n\n")
LETTERS = "\n '(),-.:;?!" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # the same on all nodes
LENGTH = 24


class Network(nn.Module):
    """Letters `int64[examples, time]` to logits `float32[examples, time, letters]`."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 24)
        self.memory = nn.GRU(24, 64, batch_first=True)
        self.output = nn.Linear(64, len(LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.memory(self.letters(x))[0])


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).float().mean()


def learner(part: int = 0) -> TorchLearner:
    text = torch.tensor([LETTERS.index(letter) for letter in POEMS[part % len(POEMS)]])
    windows = text.unfold(0, LENGTH + 1, 3)  # every third letter begins a window
    train, test = train_test_split(torch.arange(len(windows)).numpy(), test_fraction=0.1)
    data = [(windows[part, :-1], windows[part, 1:]) for part in (train, test)]
    return TorchLearner(Network, *data, loss=loss, metrics={"accuracy": accuracy}, optimizer=torch.optim.Adam)
