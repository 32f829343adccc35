"""Errors of the user's code, told as such: where, what, and with their own traceback kept."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.core.errors import LearnerFailed, ShoalError

# Frames in these folders are not the user's: installed packages, the standard library, and shoal itself.
_OTHERS = tuple(
    str(Path(place).resolve()) for place in {*sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
)

IN_THE_LOG = "the full traceback stands in the log of the node"


def culprit(error: BaseException) -> str:
    """The last line of the user's own code that an error went through, as "file.py, line 3"; empty without one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_OTHERS, "<frozen "))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def one_line(error: BaseException) -> str:
    """The error's type and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


@contextmanager
def blamed(doing: str, *, code: str = "") -> Iterator[None]:
    """Turn whatever the user's code raises inside into `LearnerFailed`; shoal's own errors pass."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        where = culprit(error)
        message = f"{doing} failed{f' in {where}' if where else ''}: {one_line(error)}"
        raise LearnerFailed(message, code=code, hint=_hint(error)) from error


def _hint(error: Exception) -> str:
    # By name, because this module is used where torch is not loaded.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "it ran out of memory: use a smaller batch_size, precision bf16, or another device"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} in the environment that shoal runs in"
    return IN_THE_LOG
