"""Comparison of the functions from which learners are made: of models, losses, metrics and optimizers."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import FunctionType
from typing import Any

from torch import nn


def recipe(function: Any) -> Hashable:
    """Return a value that is equal for functions which do the same: of equal code over the same objects.

    A module without tensors and parts is what its class and its attributes say.
    """
    if isinstance(function, nn.Module) and not function.state_dict() and not list(function.children()):
        return type(function), tuple((name, Same(value)) for name, value in vars(function).items() if name[0] != "_")
    if isinstance(function, partial):
        named = tuple(sorted((name, Same(value)) for name, value in function.keywords.items()))
        return recipe(function.func), tuple(map(Same, function.args)), named
    if not isinstance(function, FunctionType):
        return Same(function)
    cells = tuple(Same(cell.cell_contents) for cell in function.__closure__ or ())
    usual = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    known = function.__globals__
    read = tuple(Same(known[name]) for name in function.__code__.co_names if name in known)
    return function.__code__, cells, tuple(map(Same, usual)), read, Same(known)


class Same:
    """An object, equal to itself and to equal numbers and texts alone. It is kept, so that no other takes its place."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept
        self._key = kept if type(kept) in (str, int, float, bool, bytes, type(None)) else id(kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and (type(self._kept), self._key) == (type(other._kept), other._key)

    def __hash__(self) -> int:
        return hash(self._key)
