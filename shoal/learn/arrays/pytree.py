"""Nested dictionaries, lists and tuples of arrays as a tree of named tensors, and back.

A tensor is named by its path: `{"layers": [{"w": …}]}` has "layers.0.w". Arrays may be of any type that numpy can read
(numpy, JAX, MLX, …) and come back as that type, by a function of the module that made them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from numbers import Number
from typing import Any

import numpy as np

from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed, ShoalError
from shoal.core.model.tree import DTYPES, FLOATS, Array, Layout, Tree, dtype_name

Pytree = Any
"""Arrays in dictionaries, lists, tuples and named tuples, at any depth; None holds nothing."""

Convert = Callable[[Array], Any]
"""From a numpy array to the user's array type."""

CODE = "learner.model"
ALONE = "parameters"
"""Name of an array that stands alone."""


def children(node: Pytree) -> list[tuple[str, Pytree]] | None:
    """Return the names and parts of a container; None for anything else."""
    if isinstance(node, Mapping):
        return [(str(key), part) for key, part in node.items()]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return list(zip(node._fields, node, strict=True))
    return [(str(place), part) for place, part in enumerate(node)] if isinstance(node, list | tuple) else None


def leaves(node: Pytree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of everything that is not a container."""
    parts = children(node)
    if parts is None:
        yield path or ALONE, node
    for key, part in parts or ():
        yield from leaves(part, f"{path}.{key}" if path else key)


def mapped(node: Pytree, change: Callable[[str, Any], Any], path: str = "") -> Pytree:
    """Return the same containers with `change(name, leaf)` in place of each leaf but None."""
    parts = children(node)
    if parts is None:
        return None if node is None else change(path or ALONE, node)
    made = [mapped(part, change, f"{path}.{key}" if path else key) for key, part in parts]
    if isinstance(node, Mapping):
        kind: Any = type(node)
        return kind(zip(node, made, strict=True))
    return type(node)(*made) if hasattr(node, "_fields") else type(node)(made)


def as_array(leaf: Any, name: str) -> Array:
    """Return a leaf as a numpy array. Raises `InvalidJob`, by name, for what is none."""
    try:
        array = np.from_dlpack(leaf) if _only_dlpack(leaf) else np.asarray(leaf)
    except Exception as error:
        raise _unreadable(name, type(leaf).__name__) from error
    if array.dtype.kind not in "fiub":
        raise _unreadable(name, type(leaf).__name__ if array.dtype.kind == "O" else f"{array.dtype} array")
    return array


def _only_dlpack(leaf: Any) -> bool:
    return hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.ndarray) and not hasattr(leaf, "__array__")


def _unreadable(name: str, kind: str) -> InvalidJob:
    return InvalidJob(
        f"{name} is a {kind}, which is not an array of numbers that numpy can read",
        code=CODE,
        hint="give arrays in dictionaries, lists, tuples or named tuples; leave out everything that is not a parameter",
    )


def converter_of(leaf: Any, name: str) -> Convert:
    """Return the function from numpy arrays to the leaf's type. Raises `InvalidJob` where none is found."""
    kind: Any = type(leaf)
    if isinstance(leaf, np.ndarray):
        return lambda array: array
    if isinstance(leaf, Number):  # numpy's scalars too
        return lambda array: kind(array.item())
    array = as_array(leaf, name)
    for function in _array_functions(leaf):
        try:
            if type(function(array)) is kind:
                return function
        except Exception:  # noqa: BLE001, S112 - a function of this name that makes something else
            continue
    raise InvalidJob(
        f"{name} is a {kind.__module__}.{kind.__name__}, and nothing in its module makes one from a numpy array",
        code=CODE,
        hint="give config=ArrayConfig(convert=…), a function from a numpy array to yours",
    )


def _array_functions(leaf: Any) -> Iterator[Convert]:
    """Yield the functions `asarray` and `array` of the modules that the leaf's type belongs to."""
    names = type(leaf).__module__.split(".")
    modules = [sys.modules.get(".".join(names[:count])) for count in range(len(names), 0, -1)]
    if hasattr(leaf, "__array_namespace__"):
        modules.insert(0, leaf.__array_namespace__())
    for module in modules:
        for name in ("asarray", "array"):
            if callable(function := getattr(module, name, None)):
                yield function


class ParameterForm:
    """Names, types, shapes and kinds of the user's parameters: conversion to a tree, and back to the user's arrays."""

    def __init__(self, example: Pytree, convert: Convert | None = None, statistics: Iterable[str] = ()) -> None:
        found = [(name, leaf) for name, leaf in leaves(example) if leaf is not None]
        arrays = {name: as_array(leaf, name) for name, leaf in found}
        if not arrays or len(arrays) < len(found):
            why = "two parameters have one name" if arrays else "there are no parameters"
            raise InvalidJob(why, code=CODE, hint="give arrays in dictionaries, lists or tuples, no dot in a key")
        self._names = mapped(example, lambda name, _: name)
        self._converters = {name: convert or converter_of(leaf, name) for name, leaf in found}
        self.convert = next((self._converters[n] for n, leaf in found if not isinstance(leaf, Number)), lambda a: a)
        """From numpy to the type of the first array, for the data."""
        entries = [(name, _dtype_name(array, name), array.shape) for name, array in arrays.items()]
        floats = [name for name, dtype, _ in entries if dtype in FLOATS]
        self.layout = Layout.of(entries, statistics=matching(floats, statistics))

    def has_structure(self, given: Pytree) -> bool:
        """Return whether these are arrays of the parameters' names."""
        return {name for name, leaf in leaves(given) if leaf is not None} == set(self.layout.index)

    def tree_of(self, parameters: Pytree, what: str) -> Tree:
        """Return parameters as a tree. Raises `LearnerFailed`, by name, where `what` changed their form."""
        found = self._read(parameters, what, partial=False)
        for leaf in self.layout.leaves:
            array = found[leaf.name]
            if array.shape != leaf.shape or array.dtype != DTYPES[leaf.dtype]:
                given = f"{array.dtype}{list(array.shape)}"
                raise _changed(f"{what} gave {leaf.name} as {given}; it is {leaf.shown}", "keep shapes and types")
        return self._packed(found)

    def gradient_of(self, gradient: Pytree, weights: Tree, what: str) -> Tree:
        """Return a gradient as a tree, in the parameters' types: 0 where it is None. Statistics have their new values
        there, or those of `weights` where it is None, as whole numbers do. Raises `LearnerFailed`, by name, where
        `what` gave another form."""
        found = self._read(gradient, what, partial=True)
        for leaf in self.layout.leaves:
            array = found.get(leaf.name)
            if DTYPES[leaf.dtype].kind != "f" or (array is None and not self.layout.is_weight(leaf)):
                found[leaf.name] = weights[leaf.name]
            elif array is None:
                found[leaf.name] = np.zeros(leaf.shape, DTYPES[leaf.dtype])
            elif array.shape != leaf.shape:
                text = f"{what} gave the gradient of {leaf.name} the shape {list(array.shape)}; it is {leaf.shown}"
                raise _changed(text, "return a gradient of the parameter's shape")
        return self._packed(found)

    def parameters_of(self, tree: Tree, *, writable: bool = False) -> Pytree:
        """Return the user's parameters: numpy arrays are read-only views of the tree, or writable copies."""

        def made(name: str, _: str) -> Any:
            array = tree[name]
            return self._converters[name](array.copy() if writable else array)

        return mapped(self._names, made)

    def _read(self, given: Pytree, what: str, *, partial: bool) -> dict[str, Array]:
        """Return the arrays by name; `partial`: None may stand where the parameters have an array."""
        values = dict(leaves(given))
        expected, found = set(self.layout.index), {name for name, leaf in values.items() if leaf is not None}
        odd = sorted((found - expected) | (expected - (set(values) if partial else found)))
        if odd:
            state = "which is not a parameter" if odd[0] in found else "which is missing"
            raise _changed(f"{what} gave another structure: {odd[0]}, {state}", "return the containers as they came")
        try:
            return {name: as_array(values[name], name) for name in found}
        except ShoalError as error:
            raise LearnerFailed(f"{what}: {error.message}", code=CODE, hint=error.hint) from error

    def _packed(self, arrays: Mapping[str, Array]) -> Tree:
        buffer = np.empty(self.layout.nbytes, np.uint8)
        for leaf in self.layout.leaves:
            place = buffer[leaf.start : leaf.stop].view(DTYPES[leaf.dtype])
            with np.errstate(over="ignore"):  # a gradient that diverged is data, not a warning
                place[:] = arrays[leaf.name].reshape(-1)
        return Tree(self.layout, buffer)


def matching(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names of float arrays that patterns name. Raises `InvalidJob` for a pattern that names none."""
    known, found = list(names), set[str]()
    for pattern in patterns:
        named = {name for name in known if fnmatchcase(name, pattern)}
        if not named:
            hint = f"name float arrays by their paths, or by patterns such as *.mean: {', '.join(known[:5])}, …"
            raise InvalidJob(f"statistics: no array of floats is called {pattern}", code=CODE, hint=hint)
        found |= named
    return found


def _changed(text: str, hint: str) -> LearnerFailed:
    return LearnerFailed(text, code=CODE, hint=hint)


def _dtype_name(array: Array, name: str) -> str:
    try:
        return dtype_name(array)
    except InvalidPayload as error:
        raise InvalidJob(
            f"{name}: {error.message}", code=CODE, hint="use float32, or another of numpy's types"
        ) from error
