"""A small network with exits whose levels are served."""

from __future__ import annotations

import torch

from shoal.core.exits.cascade_level import CascadeLevel
from shoal.core.model.tree import Tree
from shoal.learn.exits import exit_learner, record_exits
from shoal.learn.training.torch_learner import TorchLearner
from shoal.serving.cascade_pump import AskAbove, CascadePump
from shoal.serving.served_level import ServedLevel, exit_network
from shoal.serving.served_model import ServedModel, ServedVersion
from tests.learn.exit_networks import CLASSES, small, views

VIEWS = views(3, 40)
LABELS = torch.arange(40) % CLASSES


def learner() -> TorchLearner:
    """Three devices, an edge server and the cloud, with 40 held-out examples."""
    data = (VIEWS, LABELS)
    return exit_learner(lambda: small(3, edge=True), data, data, device="cpu")


def model(version: int = 0) -> Tree:
    """The weights of a version."""
    return Tree.of({name: array * (1 + version) for name, array in learner().init(0).items()})


def served(version: int = 0) -> ServedModel:
    """A served model; each version is another model."""
    made = ServedModel(learner())
    made.load(model(version), ServedVersion("digits", version))
    return made


def middle() -> list[float]:
    """Thresholds that split the examples at each exit."""
    with served().turn() as own:
        entropies = record_exits(exit_network(own), [VIEWS], LABELS).entropies
    return [
        float((values[len(values) // 2 - 1] + values[len(values) // 2]) / 2) for values in map(sorted, entropies[:2])
    ]


def pump(of: ServedModel, name: str, above: AskAbove | None = None, timeout_s: float = 60.0) -> CascadePump:
    """A level with the thresholds of `middle`."""
    level = ServedLevel(of, name)
    threshold = [*middle(), None][level.number]
    return CascadePump(CascadeLevel(level.number, 3, threshold, timeout_s), level, above)
