"""A learner for several processes, which tells what each of them does."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from shoal.learn import TorchLearner
from tests.support.waiting import PATIENCE_S, until

X = torch.randn(66, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


class Noting(nn.Linear):
    """A layer that appends rank and process id to a file in each step, waits while another one exists, and fails."""

    hold, says, fails = Path(), Path(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.says.name:
            with self.says.open("a") as file:
                file.write(f"{os.environ.get('RANK', '0')} {os.getpid()}\n")
        if self.training and self.hold.name:
            until("the hold to end", lambda: not self.hold.exists(), 2 * PATIENCE_S)
        if self.training and self.fails:
            raise ValueError("this row is damaged")
        return super().forward(x)


def learner(hold: str = "", says: str = "", fails: str = "", wide: str = "") -> TorchLearner:
    """Return a learner that is another one at the ranks `fails` and `wide`."""
    rank = os.environ.get("RANK", "0")

    def model() -> nn.Module:
        layer = Noting(4, 3 if wide == rank else 2)
        layer.hold, layer.says, layer.fails = Path(hold), Path(says), fails == rank
        return layer

    return TorchLearner(model, (X, Y), device="cpu")
