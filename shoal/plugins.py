"""Algorithms, schedules, filters, selections and mixings by name, built in or installed by other distributions.

A distribution adds one with an entry point in the group `shoal.algorithms`, `shoal.schedules`, `shoal.filters`,
`shoal.selection` or `shoal.mixing`:

    [project.entry-points."shoal.algorithms"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from textwrap import dedent
from typing import Any, TypeVar

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filter
from shoal.core.errors import InvalidJob
from shoal.core.gossip.mixer import Mixing
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import Selection

T = TypeVar("T")

PART_CHARS_MIN, PARTS_MAX = 4, 3

_ALGORITHMS = {
    "admm": "shoal.algorithms.admm:ADMM",
    "asgd": "shoal.algorithms.asgd:AsyncSGD",
    "bagged_trees": "shoal.algorithms.bagged_trees:BaggedTrees",
    "boosted_trees": "shoal.algorithms.boosted_trees:BoostedTrees",
    "downpour": "shoal.algorithms.downpour:Downpour",
    "codistillation": "shoal.algorithms.codistillation:Codistillation",
    "diloco": "shoal.algorithms.diloco:DiLoCo",
    "dynamic": "shoal.algorithms.dynamic:DynamicAveraging",
    "fda": "shoal.algorithms.fda:FunctionalDynamicAveraging",
    "fedadagrad": "shoal.algorithms.fedopt:FedAdagrad",
    "fedadam": "shoal.algorithms.fedopt:FedAdam",
    "fedasync": "shoal.algorithms.fedasync:FedAsync",
    "fedavg": "shoal.algorithms.fedavg:FedAvg",
    "fedavgm": "shoal.algorithms.fedopt:FedAvgM",
    "fedbuff": "shoal.algorithms.fedbuff:FedBuff",
    "fedprox": "shoal.algorithms.fedprox:FedProx",
    "fedsgd": "shoal.algorithms.fedsgd:FedSGD",
    "fedyogi": "shoal.algorithms.fedopt:FedYogi",
    "flexlora": "shoal.algorithms.flexlora:FlexLoRA",
    "largebatch": "shoal.algorithms.largebatch:LargeBatch",
    "lbfgs": "shoal.algorithms.lbfgs:LBFGS",
    "periodic": "shoal.algorithms.periodic:PeriodicAveraging",
    "scaffold": "shoal.algorithms.scaffold:Scaffold",
}
_SCHEDULES = {
    "buffer": "shoal.schedules.buffer:Buffer",
    "divergence": "shoal.schedules.divergence:Divergence",
    "periodic": "shoal.schedules.periodic:Periodic",
    "rounds": "shoal.schedules.rounds:Rounds",
    "variance": "shoal.schedules.variance:Variance",
}
_FILTERS = {
    "delta": "shoal.filters.delta:Delta",
    "half": "shoal.filters.half:Half",
    "quantize": "shoal.filters.quantize:Quantize",
    "top_k": "shoal.filters.top_k:TopK",
}
_SELECTIONS = {
    "examples": "shoal.selection.examples:ByExamples",
    "power_of_choice": "shoal.selection.power_of_choice:PowerOfChoice",
    "uniform": "shoal.selection.uniform:Uniform",
}
_MIXINGS = {
    "all_reduce": "shoal.mixing.all_reduce:AllReduce",
    "neighbors": "shoal.mixing.neighbors:Neighbors",
    "pairwise": "shoal.mixing.pairwise:Pairwise",
    "push_sum": "shoal.mixing.push_sum:PushSum",
}


@cache
def algorithms() -> dict[str, type[Algorithm]]:
    """Return all algorithms by name. Raises `InvalidJob` for an invalid entry point."""
    return _load(_ALGORITHMS, "shoal.algorithms", Algorithm)


@cache
def schedules() -> dict[str, type[Schedule]]:
    """Return all schedules by name. Raises `InvalidJob` for an invalid entry point."""
    return _load(_SCHEDULES, "shoal.schedules", Schedule)


@cache
def filters() -> dict[str, type[Filter]]:
    """Return all filters by name. Raises `InvalidJob` for an invalid entry point."""
    return _load(_FILTERS, "shoal.filters", Filter)


@cache
def selections() -> dict[str, type[Selection]]:
    """Return all selections by name. Raises `InvalidJob` for an invalid entry point."""
    return _load(_SELECTIONS, "shoal.selection", Selection)


@cache
def mixings() -> dict[str, type[Mixing]]:
    """Return all mixings by name. Raises `InvalidJob` for an invalid entry point."""
    return _load(_MIXINGS, "shoal.mixing", Mixing)  # type: ignore[type-abstract] # no instance is made of it


KINDS: dict[str, Callable[[], Mapping[str, type[Any]]]] = {
    "algorithm": algorithms,
    "schedule": schedules,
    "filter": filters,
    "selection": selections,
}
"""Kinds of plugins in a job file, by their key there."""

PEER_KINDS: dict[str, Callable[[], Mapping[str, type[Any]]]] = {"mixing": mixings}
"""Kinds of plugins for peers without a server."""


def _load(builtin: dict[str, str], group: str, base: type[T]) -> dict[str, type[T]]:
    found: dict[str, type[T]] = {}
    for name, place in builtin.items():
        module, _, attribute = place.partition(":")
        found[name] = getattr(import_module(module), attribute)
    for entry in entry_points(group=group):
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise InvalidJob(f"entry point {entry.name} of {group} is not a {base.__name__}", code="plugin.invalid")
        found.setdefault(entry.name, kind)
    return found


def suggestion(wrong: str, known: Iterable[str], common: str = "") -> str:
    """Return a hint for an unknown name: the nearest name, else the names that contain it, else `common`, else all."""
    names = sorted(known)
    close = get_close_matches(wrong, names, 1)
    close = close or [name for name in names if len(wrong) >= PART_CHARS_MIN and wrong in name][:PARTS_MAX]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return common or f"known: {', '.join(names)}"


def field_notes(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a class, inherited ones included."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            body = ast.parse(dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue  # a class without its source has no notes
        assert isinstance(body, ast.ClassDef)
        for field, note in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
                notes[ast.unparse(field.target)] = inspect.cleandoc(str(note.value.value)).replace("\n", " ")
    return notes
