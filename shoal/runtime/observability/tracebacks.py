"""Where an error came from, for people elsewhere: the frames of whoever's code it was, and nothing secret."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.heads import TRACEBACK_MAX
from shoal.runtime.logs import redact

_CUT = "\n    […]\n"


def whence(error: BaseException) -> str:
    """The traceback of the error, or of what caused it; empty for errors of our own, whose message says everything.

    An error that came from another process may carry its own as `traceback_text`.
    """
    brought = getattr(error, "traceback_text", "")
    if brought:
        return _tame(str(brought))
    culprit = (error.__cause__ or error) if isinstance(error, ShoalError) else error
    return "" if isinstance(culprit, ShoalError) else _tame("".join(traceback.format_exception(culprit)))


def _tame(text: str) -> str:
    """Without credentials, control characters and the name of who is logged in; its middle left out if it is long."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in redact(text))
    plain = plain.replace(str(Path.home()), "~").strip()
    if len(json.dumps(plain)) > 2 * TRACEBACK_MAX and not plain.isascii():
        plain = plain.encode("ascii", "replace").decode()  # in a head, a letter of some alphabets takes twelve bytes
    if len(plain) <= TRACEBACK_MAX:
        return plain
    head = TRACEBACK_MAX // 4
    return plain[:head] + _CUT + plain[len(plain) - (TRACEBACK_MAX - head - len(_CUT)) :]
