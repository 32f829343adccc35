"""The first error of a group."""

from __future__ import annotations

from typing import NoReturn

from shoal.core.errors import ShoalError


def reraise_first(errors: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise one error in place of a group: its first `ShoalError`, or else its first error."""
    flat: list[BaseException] = []
    groups: list[BaseException] = [errors]
    while groups:
        one = groups.pop(0)
        if isinstance(one, BaseExceptionGroup):
            groups += one.exceptions
        else:
            flat.append(one)
    raise next((one for one in flat if isinstance(one, ShoalError)), flat[0]) from errors
