"""The jobs of the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.conformance.reference_learner import IMPOSSIBLE
from shoal.core.model.tree import Array, Tree

LARGE = 100_000
"""Float32 numbers of a model whose payload is too long for a frame."""


@dataclass(frozen=True)
class ConformanceCase:
    """A job. `spec`: what differs from plain federated averaging; `start`: the model that it starts with."""

    name: str
    about: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    start: Tree | None = None
    fails: bool = False
    """True if every task must be answered with a failure."""
    required: bool = True
    """False for abilities that a client may refuse by a failure."""


def large() -> Tree:
    """Return a model of 400 kB."""
    w = (np.arange(LARGE, dtype=np.float32) % 256) / 256
    return Tree.of({"w": w, "seen": np.array(3, np.int64)})


def every_type() -> Tree:
    """Return a model with a tensor of each type, an empty one, and names that order must not confuse."""
    kinds = {"F64": np.float64, "F16": np.float16, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8}
    tensors: dict[str, Array] = {f"layer.{name.lower()}": np.arange(6).astype(kind) for name, kind in kinds.items()}
    tensors |= {"layer.bool": np.array([True, False]), "layer.bf16": np.array([1.0, -2.5], np.float32)}
    tensors |= {"w": np.ones((2, 3), np.float32), 'Ünïcode"name': np.zeros((1, 1, 2), np.float32)}
    tensors |= {"empty": np.zeros((0, 4), np.float32), "seen": np.array(7, np.int64)}
    return Tree.of(tensors, {"layer.bf16": "BF16"})


def measured() -> Tree:
    """Return a model with statistics, whose names come before and after those of the weights."""
    tensors: dict[str, Array] = {"bn.mean": np.zeros(3, np.float32), "z.var": np.ones(3, np.float32)}
    tensors |= {"w": np.ones((2, 3), np.float32), "half": np.ones(2, np.float16), "seen": np.array(1, np.int64)}
    return Tree.of(tensors, statistics=["bn.mean", "z.var", "half"])


def impossible() -> Tree:
    """Return a model that cannot be trained."""
    return Tree.of({"w": np.zeros(2, np.float32), "seen": np.array(0, np.int64), IMPOSSIBLE: np.zeros(1, np.float32)})


CASES = (
    ConformanceCase("init", "makes the initial model, trains, measures, reports inline"),
    ConformanceCase("epochs", "follows the job's number of epochs", {"algorithm": {"name": "fedavg", "epochs": 3}}),
    ConformanceCase("large", "fetches and uploads models outside frames", start=large()),
    ConformanceCase("types", "keeps every type, shape and name", start=every_type()),
    ConformanceCase("statistics", "reports statistics as values, not as differences", start=measured()),
    ConformanceCase("failure", "reports a task that it cannot do as failed", start=impossible(), fails=True),
    ConformanceCase("momentum", "leaves the server's part alone", {"algorithm": {"name": "fedavgm"}}, required=False),
    ConformanceCase("half", "filter half", {"filters": [{"name": "half"}]}, required=False),
    ConformanceCase("quantize", "filter quantize", {"filters": [{"name": "quantize"}]}, required=False),
    ConformanceCase("top_k", "filter top_k", {"filters": [{"name": "top_k"}]}, required=False),
    ConformanceCase("delta", "filter delta", {"filters": [{"name": "delta"}]}, required=False),
    ConformanceCase("stages", "grows the model", {"stages": [{"rounds": 1}, {}]}, required=False),
    ConformanceCase("gossip", "a job that may go on without the coordinator", {"gossip": {"allowed": True}}),
)
