"""A LightningModule that does what a `TorchLearner` does."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from shoal.core.model.tree import Tree
from tests.loop.loops import network


class Module(LightningModule):
    """The network of a `TorchLearner`, and what that does with it."""

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__()
        self.net, self.lr, self.momentum = network(), 0.5, momentum

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("own", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        output = self.net(batch[0])
        self.log("val_accuracy", (output.argmax(1) == batch[1]).float().mean())
        self.log("val_loss", nn.functional.cross_entropy(output, batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def unwrapped(model: Any, like: Tree) -> Tree:
    """Return a `Module`'s weights by the names of its network's."""
    arrays = {name.removeprefix("net."): model[name] for name in model}
    return Tree.of(arrays, statistics=like.layout.statistics)
