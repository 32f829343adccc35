"""Mistakes of a job file with their places, for messages and forms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shoal.core.errors import InvalidJob

TEXT_CHARS_MAX = 500
"""Greatest length of a mistake's text, which quotes the user's input."""

Place = tuple[str | int, ...]

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
"""Valid names of jobs."""

_SAID = {NAME: "must have 1 to 63 of a-z, 0-9, '.', '_' and '-', the first of them a letter or digit"}
"""A pattern in words: people read no regular expressions."""


@dataclass(frozen=True)
class ConfigError:
    """A mistake. `place` has keys and indices from the top of the file; empty means the whole job."""

    place: Place
    text: str
    hint: str = ""
    code: str = InvalidJob.default_code

    def error(self) -> InvalidJob:
        """Return the mistake as an exception."""
        return InvalidJob(self.text, code=self.code, hint=self.hint)


def combined_error(mistakes: Sequence[ConfigError]) -> InvalidJob:
    """Combine mistakes into one exception."""
    if len(mistakes) == 1:
        return mistakes[0].error()
    lines = [f"{one.text} ({one.hint})" if one.hint else one.text for one in mistakes]
    return InvalidJob("\n  ".join([f"{len(mistakes)} mistakes", *lines]), code=mistakes[0].code)


def error_of_table(error: InvalidJob, place: Place, fields: Collection[str]) -> ConfigError:
    """Return the mistake for an error of a whole table, at the first field that its text mentions."""
    named = next((word for word in re.findall(r"[a-z_][a-z0-9_]*", error.message) if word in fields), None)
    return ConfigError((*place, named) if named else place, error.message, error.hint, error.code)


def error_text(one: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, a pattern in words."""
    pattern = str(one.get("ctx", {}).get("pattern", ""))
    return _SAID.get(pattern, str(one["msg"]).removeprefix("Value error, "))


def validation_errors(error: ValidationError, prefix: str = "") -> Iterator[tuple[Place, str, bool]]:
    """Yield (place, text, whether the key is unknown) of each validation error."""
    for one in error.errors(include_url=False, include_input=False):
        where, unknown = ".".join(str(part) for part in one["loc"]), one["type"] == "extra_forbidden"
        text = f"{prefix}{where}: {'unknown key' if unknown else error_text(one)}"
        yield tuple(one["loc"]), text[:TEXT_CHARS_MAX], unknown
