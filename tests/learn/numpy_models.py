"""Models of numpy for `ArrayLearner`, one of them the double of a torch module, and a foreign array type."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from shoal.learn import ArrayLearner
from tests.algorithms.softmax import SIZES, digits


class Layer(NamedTuple):
    """An affine layer."""

    w: Any
    b: Any


def parameters(seed: int, counts: bool = True) -> dict[str, Any]:
    """Two layers, in containers of every kind, and perhaps a counter."""
    rng = np.random.default_rng(seed)
    layers = [Layer(0.2 * rng.standard_normal(shape, np.float32), np.zeros(shape[1], np.float32)) for shape in SHAPES]
    return {"layers": layers, "scale": (np.float32(1.0),), "steps": np.int64(3) if counts else None, "nothing": None}


SHAPES = ((64, 16), (16, 10))


def forward(p: dict[str, Any], x: Any) -> tuple[Any, Any]:
    first, last = p["layers"]
    hidden = np.maximum(x @ first.w + first.b, 0)
    return hidden, hidden @ last.w + last.b


def probabilities(logits: Any) -> Any:
    grown = np.exp(logits - logits.max(1, keepdims=True))
    return grown / grown.sum(1, keepdims=True)


def gradient(p: dict[str, Any], batch: Any) -> tuple[Any, Any]:
    """The cross entropy and its gradient."""
    x, y = batch
    hidden, logits = forward(p, x)
    odds = probabilities(logits)
    loss = -np.log(odds[np.arange(len(y)), y]).mean()
    odds[np.arange(len(y)), y] -= 1
    odds /= len(y)
    back = (odds @ p["layers"][1].w.T) * (hidden > 0)
    layers = [Layer(x.T @ back, back.sum(0)), Layer(hidden.T @ odds, odds.sum(0))]
    return loss, {"layers": layers, "scale": (None,), "steps": None, "nothing": None}


def loop(p: dict[str, Any], batches: Any, config: Any) -> Any:
    """SGD by hand; writes into the arrays that it is given."""
    losses = []
    for batch in batches:
        loss, slope = gradient(p, batch)
        losses.append(loss)
        for layer, change in zip(p["layers"], slope["layers"], strict=True):
            for array, by in zip(layer, change, strict=True):
                np.subtract(array, np.float32(config.lr) * by, out=array)
    return p, {"loss": np.mean(losses)}


def measures(p: dict[str, Any], batch: Any) -> dict[str, Any]:
    x, y = batch
    odds = probabilities(forward(p, x)[1])
    return {"accuracy": (odds.argmax(1) == y).mean(), "loss": -np.log(odds[np.arange(len(y)), y]).mean()}


def data() -> tuple[Any, Any]:
    x, y = digits()
    return x.astype(np.float32), y


def array_learners(*, counts: bool = True, **more: Any) -> list[ArrayLearner]:
    """Three nodes of unequal size, with a common test set."""
    x, y = data()
    edges = np.cumsum((0, *SIZES))
    test = x[edges[-1] :], y[edges[-1] :]
    given = {"gradient": gradient, "evaluate": measures, **more}
    return [
        ArrayLearner(partial(parameters, counts=counts), (x[a:b], y[a:b]), test, **given) for a, b in pairwise(edges)
    ]


def foreign_module(name: str = "foreign_arrays") -> Any:
    """A library of immutable arrays that numpy can read and that its function `array` makes, as MLX's."""

    class ForeignArray:
        def __init__(self, values: Any) -> None:
            self._values = np.array(values)
            self._values.flags.writeable = False

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self._values if dtype is None else self._values.astype(dtype)

        def __matmul__(self, other: Any) -> Any:
            return ForeignArray(self._values @ np.asarray(other))

        def __sub__(self, other: Any) -> Any:
            return ForeignArray(self._values - np.asarray(other))

        def __len__(self) -> int:
            return len(self._values)

    module: Any = ModuleType(name)
    ForeignArray.__module__ = f"{name}.core"
    module.array, module.asarray = ForeignArray, np.asarray  # the latter makes something else
    sys.modules[name] = module
    return module
