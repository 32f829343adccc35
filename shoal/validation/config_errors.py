"""What is wrong with a job file, place by place: for forms, which show each mistake at its field."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shoal.core.errors import InvalidJob

TEXT_CHARS_MAX = 500
"""Of a mistake's text, which quotes what somebody has written."""

Place = tuple[str | int, ...]

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
"""What a job may be called."""

_SAID = {NAME: "must have 1 to 63 of a-z, 0-9, '.', '_' and '-', the first of them a letter or digit"}
"""A pattern in words: people read no regular expressions."""


@dataclass(frozen=True)
class Mistake:
    """`place`: keys, and numbers of tables, from the top of the file; empty: the job as a whole."""

    place: Place
    text: str
    hint: str = ""
    code: str = InvalidJob.default_code

    def error(self) -> InvalidJob:
        """The same as an exception."""
        return InvalidJob(self.text, code=self.code, hint=self.hint)


def together(mistakes: Sequence[Mistake]) -> InvalidJob:
    """All of them as one exception, so that a file is mended in one go; one alone as itself."""
    if len(mistakes) == 1:
        return mistakes[0].error()
    lines = [f"{one.text} ({one.hint})" if one.hint else one.text for one in mistakes]
    return InvalidJob("\n  ".join([f"{len(mistakes)} mistakes", *lines]), code=mistakes[0].code)


def of_error(error: InvalidJob, place: Place, fields: Collection[str]) -> Mistake:
    """An error that a table as a whole has raised, at the first of its fields that the text speaks of."""
    named = next((word for word in re.findall(r"[a-z_][a-z0-9_]*", error.message) if word in fields), None)
    return Mistake((*place, named) if named else place, error.message, error.hint, error.code)


def said(one: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, a pattern in words."""
    pattern = str(one.get("ctx", {}).get("pattern", ""))
    return _SAID.get(pattern, str(one["msg"]).removeprefix("Value error, "))


def of_validation(error: ValidationError, prefix: str = "") -> Iterator[tuple[Place, str, bool]]:
    """(place, text, whether it is a key that nobody knows) of each thing that is wrong with the types of values."""
    for one in error.errors(include_url=False, include_input=False):
        where, unknown = ".".join(str(part) for part in one["loc"]), one["type"] == "extra_forbidden"
        text = f"{prefix}{where}: {'unknown key' if unknown else said(one)}"
        yield tuple(one["loc"]), text[:TEXT_CHARS_MAX], unknown
