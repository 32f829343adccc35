"""A network in numpy: its loss and gradient are all that shoal needs. Each node has some of the digits."""

from typing import Any

import numpy as np

from shoal.learn import ArrayLearner
from shoal.learn.data.bundled import digits
from shoal.learn.data.partition import iid, train_test_split

images, labels = digits()
x, y = (images / 16).astype(np.float32), labels.astype(np.int64)


def parameters(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "hidden": {"w": 0.2 * rng.standard_normal((64, 32), np.float32), "b": np.zeros(32, np.float32)},
        "out": {"w": 0.2 * rng.standard_normal((32, 10), np.float32), "b": np.zeros(10, np.float32)},
    }


def forward(p: dict[str, Any], inputs: Any) -> tuple[Any, Any]:
    hidden = np.maximum(inputs @ p["hidden"]["w"] + p["hidden"]["b"], 0)
    logits = hidden @ p["out"]["w"] + p["out"]["b"]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return hidden, odds / odds.sum(1, keepdims=True)


def gradient(p: dict[str, Any], batch: Any) -> tuple[Any, Any]:
    inputs, target = batch
    hidden, odds = forward(p, inputs)
    rows = np.arange(len(target))
    loss = -np.log(odds[rows, target]).mean()
    odds[rows, target] -= 1
    odds /= len(target)
    back = (odds @ p["out"]["w"].T) * (hidden > 0)
    return loss, {
        "hidden": {"w": inputs.T @ back, "b": back.sum(0)},
        "out": {"w": hidden.T @ odds, "b": odds.sum(0)},
    }


def measures(p: dict[str, Any], batch: Any) -> dict[str, Any]:
    inputs, target = batch
    return {"accuracy": (forward(p, inputs)[1].argmax(1) == target).mean(), "loss": gradient(p, batch)[0]}


def learner(part: int = 0, parts: int = 4) -> ArrayLearner:
    train, test = train_test_split(iid(len(y), parts)[part], test_fraction=0.2)
    return ArrayLearner(parameters, (x[train], y[train]), (x[test], y[test]), gradient=gradient, evaluate=measures)
