"""Errors of the user's code, with location, text and traceback."""

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


def error_location(error: BaseException) -> str:
    """Return the last line of the user's own code in an error's traceback, as "file.py, line 3"; empty without one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_OTHERS, "<frozen "))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def one_line(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def user_code(doing: str, *, code: str = "") -> Iterator[None]:
    """Convert exceptions of the user's code in the block to `LearnerFailed`; shoal's own errors pass."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        raise failure_of(error, doing, code=code) from error


def failure_of(error: Exception, doing: str, *, code: str = "") -> LearnerFailed:
    """Return the failure of the user's code that an exception is, with file, line and what to do."""
    where = error_location(error)
    message = f"{doing} failed{f' in {where}' if where else ''}: {one_line(error)}"
    failure = LearnerFailed(message, code=code, hint=_hint(error))
    failure.__cause__ = error
    return failure


def _hint(error: Exception) -> str:
    if isinstance(error, ShoalError) and error.hint:
        return error.hint
    # By name, because this module is used where torch is not loaded.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "it ran out of memory: use a smaller batch_size, precision bf16, or another device"
    if "more than 1 value per channel" in str(error):
        return "BatchNorm cannot train on one example: use another batch_size, or a DataLoader with drop_last=True"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} in the environment that shoal runs in"
    return IN_THE_LOG
