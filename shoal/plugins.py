"""Algorithms, schedules, filters, ways of choosing nodes and of mixing by name: ours, and those that others
bring along.

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

from shoal.core.algorithm import Algorithm
from shoal.core.errors import InvalidJob
from shoal.core.filter import Filter
from shoal.core.gossip import Mixing
from shoal.core.schedule import Schedule
from shoal.core.selection import Selection

T = TypeVar("T")

_ALGORITHMS = {
    "admm": "shoal.algorithms.admm:ADMM",
    "asgd": "shoal.algorithms.asgd:AsyncSGD",
    "downpour": "shoal.algorithms.downpour:Downpour",
    "codistillation": "shoal.algorithms.codistillation:Codistillation",
    "dynamic": "shoal.algorithms.dynamic:DynamicAveraging",
    "fda": "shoal.algorithms.fda:FunctionalDynamicAveraging",
    "fedadagrad": "shoal.algorithms.fedadagrad:FedAdagrad",
    "fedadam": "shoal.algorithms.fedadam:FedAdam",
    "fedasync": "shoal.algorithms.fedasync:FedAsync",
    "fedavg": "shoal.algorithms.fedavg:FedAvg",
    "fedavgm": "shoal.algorithms.fedavgm:FedAvgM",
    "fedbuff": "shoal.algorithms.fedbuff:FedBuff",
    "fedprox": "shoal.algorithms.fedprox:FedProx",
    "fedsgd": "shoal.algorithms.fedsgd:FedSGD",
    "fedyogi": "shoal.algorithms.fedyogi:FedYogi",
    "largebatch": "shoal.algorithms.largebatch:LargeBatch",
    "lbfgs": "shoal.algorithms.lbfgs:LBFGS",
    "periodic": "shoal.algorithms.periodic:PeriodicAveraging",
    "scaffold": "shoal.algorithms.scaffold:Scaffold",
}
_SCHEDULES = {
    "buffer": "shoal.schedules.buffer:Buffer",
    "drift": "shoal.schedules.drift:Drift",
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
    "neighbours": "shoal.mixing.neighbours:Neighbours",
    "pairwise": "shoal.mixing.pairwise:Pairwise",
    "push_sum": "shoal.mixing.push_sum:PushSum",
}


@cache
def algorithms() -> dict[str, type[Algorithm]]:
    """All algorithms by name. Raises `InvalidJob` for an entry point that is none."""
    return _load(_ALGORITHMS, "shoal.algorithms", Algorithm)


@cache
def schedules() -> dict[str, type[Schedule]]:
    """All schedules by name. Raises `InvalidJob` for an entry point that is none."""
    return _load(_SCHEDULES, "shoal.schedules", Schedule)


@cache
def filters() -> dict[str, type[Filter]]:
    """All filters by name. Raises `InvalidJob` for an entry point that is none."""
    return _load(_FILTERS, "shoal.filters", Filter)


@cache
def selections() -> dict[str, type[Selection]]:
    """All ways of choosing nodes by name. Raises `InvalidJob` for an entry point that is none."""
    return _load(_SELECTIONS, "shoal.selection", Selection)


@cache
def mixings() -> dict[str, type[Mixing]]:
    """All ways of mixing by name. Raises `InvalidJob` for an entry point that is none."""
    return _load(_MIXINGS, "shoal.mixing", Mixing)  # type: ignore[type-abstract] # no instance is made of it


KINDS: dict[str, Callable[[], Mapping[str, type[Any]]]] = {
    "algorithm": algorithms,
    "schedule": schedules,
    "filter": filters,
    "selection": selections,
}
"""What a job file may name, by what it is called there."""

PEER_KINDS: dict[str, Callable[[], Mapping[str, type[Any]]]] = {"mixing": mixings}
"""What peers without a server choose from besides."""


def _load(builtin: dict[str, str], group: str, base: type[T]) -> dict[str, type[T]]:
    found: dict[str, type[T]] = {}
    for name, place in builtin.items():
        module, _, attribute = place.partition(":")
        found[name] = getattr(import_module(module), attribute)
    for entry in entry_points(group=group):
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise InvalidJob(f"entry point {entry.name} of {group} is no {base.__name__}", code="plugin.invalid")
        found.setdefault(entry.name, kind)
    return found


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """A hint for a name that nobody knows."""
    names = sorted(known)
    close = get_close_matches(wrong, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def field_notes(kind: type[Any]) -> dict[str, str]:
    """The string that stands below each field in the source of a class and of those that it inherits from."""
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
