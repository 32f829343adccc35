"""Learners on the digits that shoal ships: 1,797 handwritten digits of 8x8 pixels, without a download.

Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.

A fifth is held out for all (`held_out`); the rest is divided over `parts` nodes, each of which holds back a share for
its own evaluation.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from shoal.learn import models
from shoal.learn.data import bundled
from shoal.learn.data.partition import chosen, divided, train_test_split
from shoal.learn.data.stream import streamed
from shoal.learn.training.torch_learner import TorchLearner

HELD_OUT = 0.2


def learner(
    part: int = 0,
    parts: int = 4,
    *,
    split: str = "dirichlet:0.5",
    seed: int = 0,
    model: str = "mlp",
    test_fraction: float = 0.2,
    drift: str = "",
    per_second: float = 0.0,
) -> TorchLearner:
    """Return a learner for one part of the digits. `split` is iid, dirichlet:ALPHA, shards:PER_PART or
    quantity:BETA; `model` is mlp, cnn or bn.

    `drift` (permute@BATCH, rotate:DEGREES@BATCH, new:7+8+9@BATCH, several with commas between) and `per_second`, in
    mini-batches, make a stream of them.
    """
    x, y = digits()
    common, _ = train_test_split(np.arange(len(y)), HELD_OUT)
    own = common[chosen(divided(split, y[common], parts, seed), part)]
    train, test = train_test_split(own, test_fraction, seed)
    return TorchLearner(
        models.named(models.DIGITS, model),
        streamed((x[train], y[train]), drift, per_second, seed),
        (x[test], y[test]) if len(test) else None,
    )


def compared(
    part: int = 0, parts: int = 4, *, split: str = "dirichlet:0.5", seed: int = 0, model: str = "mlp"
) -> TorchLearner:
    """Return a learner for one part of the digits that evaluates on the held-out fifth, for comparable nodes."""
    x, y = digits()
    common, test = train_test_split(np.arange(len(y)), HELD_OUT)
    own = common[chosen(divided(split, y[common], parts, seed), part)]
    return TorchLearner(models.named(models.DIGITS, model), (x[own], y[own]), (x[test], y[test]))


def held_out(model: str = "mlp", *, device: str = "auto") -> TorchLearner:
    """Return a learner whose test data are the held-out fifth."""
    x, y = digits()
    common, test = train_test_split(np.arange(len(y)), HELD_OUT)
    return TorchLearner(
        models.named(models.DIGITS, model),
        (x[common], y[common]),
        (x[test], y[test]),
        device=device,
    )


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """Return all digits: `float32[1797, 64]` in [0, 1] and `int64[1797]`."""
    x, y = bundled.digits()
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
