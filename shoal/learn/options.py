"""Conversion of command-line options to the arguments of a function."""

from __future__ import annotations

import inspect
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from shoal.core.errors import InvalidJob

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def named_parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that `make` takes by name; none if it has no signature, as some built-ins."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}
    return {name: p for name, p in parameters.items() if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}


def takes_any(make: Callable[..., Any]) -> bool:
    """Return whether `make` takes parameters of any name."""
    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return False


def fitted(make: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return options as arguments for `make`, with texts converted to the declared types.

    Those are int, float, bool, str, Path and Literal; a parameter without one goes by its default. A text for any other
    type is read as TOML. Raises `InvalidJob` for options that are unknown, missing or not of their type, saying what
    `make` takes.
    """
    try:
        parameters = dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # some built-in callables tell nothing about themselves
        return dict(options)
    named = {name: p for name, p in parameters.items() if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    unknown = [name for name in options if name not in named and not takes_any(make)]
    missing = [name for name, p in named.items() if p.default is p.empty and name not in options]
    if unknown or missing:
        faults = [f"has no option {', '.join(unknown)}"] * bool(unknown) + [f"needs {', '.join(missing)}"] * bool(
            missing
        )
        raise InvalidJob(f"{what} {' and '.join(faults)}", code="learner.options", hint=_usage(named))
    hints = _hints(make)
    return {
        name: _value(value, _kind(named.get(name), hints.get(name)), f"{what}: option {name}")
        for name, value in options.items()
    }


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    function = make.__init__ if inspect.isclass(make) else make
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # annotations that only a type checker can read
        return {}


def _kind(parameter: inspect.Parameter | None, declared: Any) -> Any:
    if declared is not None:
        return declared
    return None if parameter is None else type(parameter.default)


def _value(value: Any, kind: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    if typing.get_origin(kind) is Literal:
        return _choice(value, typing.get_args(kind), what)
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        kind = next((part for part in typing.get_args(kind) if part is not type(None)), None)
    try:
        if kind is bool:
            return _yes(value)
        return kind(value) if kind in {int, float, str, Path} else literal(value)
    except ValueError as error:
        names = {int: "a whole number", float: "a number", bool: "true or false"}
        raise InvalidJob(f"{what} is {value!r}, not {names[kind]}", code="learner.options") from error


def literal(text: str) -> Any:
    """Return a TOML value, or the text itself."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tables["value"] if tables.keys() == {"value"} else text


def _yes(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError(text)
    return text.lower() in YES


def _choice(text: str, choices: tuple[Any, ...], what: str) -> Any:
    for choice in choices:
        if str(choice) == text:
            return choice
    raise InvalidJob(f"{what} is {text!r}", code="learner.options", hint=f"use {' or '.join(map(str, choices))}")


def _usage(named: Mapping[str, inspect.Parameter]) -> str:
    if not named:
        return "it takes no options"
    return "it takes " + ", ".join(
        name if p.default is p.empty else f"{name} ({p.default!r})" for name, p in named.items()
    )
