"""Log lines for what goes wrong again and again, such as a database that is not there: one when it begins, one when it
is over, and no traceback of what is not a bug."""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError

from shoal.core.errors import ShoalError

log = structlog.get_logger()


def brief(error: BaseException) -> str:
    """Return what an error says in one line: of a database's error its own words, without the statement."""
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return (text.strip().splitlines() or [""])[0][:500] or type(error).__name__


class RepeatedErrors:
    """Something that is done again and again, and what is logged while it fails. `what`: a sentence on the failure."""

    def __init__(self, what: str) -> None:
        self._what, self._said = what, ""

    def failed(self, error: Exception, **more: Any) -> None:
        """Log the error, unless the same one was logged since the last success. A bug is logged with its traceback."""
        text = f"{type(error).__name__}: {brief(error)}"
        if text == self._said:
            return
        self._said = text
        expected = isinstance(error, ShoalError | DBAPIError | OSError)
        log.error(self._what, error=text, exc_info=None if expected else error, **more)

    def worked(self) -> None:
        """Say that it is over, if it had failed."""
        if self._said:
            log.info("it works again", after=self._what)
            self._said = ""
