"""Dataclasses as JSON values and back, for snapshots: fields by name, sets sorted, bytes in base64.

Fields with `init=False` are left out, and those whose default is None, True or False while they have it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_state(value: Any) -> Any:
    """Return a dataclass as JSON values."""
    kind: Any = type(value)
    return _converter(kind).encode(value)


def from_state(kind: type[T], values: Any) -> T:
    """Return the dataclass that has these values."""
    made: Any = kind
    found: T = _converter(made).decode(values)
    return found


class _Converter(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


_PLAIN = _Converter(_same, _same)


@cache
def _converter(kind: Any) -> _Converter:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (inner,) = (_converter(part) for part in parts if part is not NoneType)
        return inner if inner is _PLAIN else _Converter(_unless_none(inner.encode), _unless_none(inner.decode))
    if origin in (list, tuple):
        one = _converter(parts[0])
        if one is _PLAIN:
            return _Converter(list, origin)
        return _Converter(lambda found: [*map(one.encode, found)], lambda found: origin(map(one.decode, found)))
    if origin in (set, frozenset, dict):
        return _Converter(dict if origin is dict else sorted, origin)
    if kind is bytes:
        return _Converter(lambda found: b64encode(found).decode(), b64decode)
    return _of_dataclass(kind) if is_dataclass(kind) else _PLAIN


def _of_dataclass(kind: Any) -> _Converter:
    hints = get_type_hints(kind)
    known = {one.name: _converter(hints[one.name]) for one in fields(kind) if one.init}
    encoders = [(one.name, known[one.name].encode, _default(one)) for one in fields(kind) if one.init]

    def encode(value: Any) -> dict[str, Any]:
        found, state = vars(value), {}
        for name, convert, default in encoders:
            one = found[name]
            if one is not default:
                state[name] = one if convert is _same else convert(one)
        return state

    def decode(values: dict[str, Any]) -> Any:
        return kind(**{name: known[name].decode(value) for name, value in values.items()})

    return _Converter(encode, decode)


def _default(one: Field[Any]) -> Any:
    """Return the default by which a field is left out: a constant, compared by identity, because that is fast."""
    return one.default if one.default is None or isinstance(one.default, bool) else MISSING


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: None if found is None else convert(found)
