"""Tracebacks of user code for other machines, without secrets."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.runtime.observability.logs import redact
from shoal.validation.message_checks import TRACEBACK_MAX

_CUT = "\n    […]\n"


def traceback_text_of(error: BaseException) -> str:
    """Return the traceback of the error or of its cause; empty for `ShoalError`s, whose message is sufficient.

    An error from another process may carry its own as `traceback_text`.
    """
    brought = getattr(error, "traceback_text", None)
    if brought is not None:
        return _sanitized(str(brought))
    cause = (error.__cause__ or error) if isinstance(error, ShoalError) else error
    return "" if isinstance(cause, ShoalError) else _sanitized("".join(traceback.format_exception(cause)))


def _sanitized(text: str) -> str:
    """Return the text without credentials, control characters and user name; shortened in the middle."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in redact(text))
    plain = plain.replace(str(Path.home()), "~").strip()
    if len(json.dumps(plain)) > 2 * TRACEBACK_MAX and not plain.isascii():
        plain = plain.encode("ascii", "replace").decode()  # in a head, a letter of some alphabets takes twelve bytes
    if len(plain) <= TRACEBACK_MAX:
        return plain
    head = TRACEBACK_MAX // 4
    return plain[:head] + _CUT + plain[len(plain) - (TRACEBACK_MAX - head - len(_CUT)) :]
