"""Validators of dataclasses."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


def validator_of(kind: type[T]) -> TypeAdapter[T]:
    """Return the validator of a class. Building one takes a millisecond, so each class has one."""
    return _built(cast("Hashable", kind))


@cache
def _built(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
