"""Errors of the user's code, with location, text and traceback."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from shoal.core.errors import LearnerFailed, ShoalError

# Frames in these folders are not the user's: installed packages, the standard library, and shoal itself.
_OTHERS = tuple(
    str(Path(place).resolve()) for place in {*sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
)

LINE_MAX = 200
"""Characters of an error's own text in one line; the log has all of it."""

MEMORY_TEXTS = ("out of memory", "an't allocate memory", "annot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of errors of torch and of the system that have no type of their own."""

MORE_MEMORY = (
    "it ran out of memory: use a smaller batch_size (with accumulate), bf16, more processes (TorchConfig.parallel) "
    "or another device"
)
LOST_WORKER = "did memory run out? look at the system's log, and use fewer workers or a smaller batch_size"

IN_THE_LOG = "the full traceback stands above, in the log of the node, or comes with shoal --verbose"


def error_location(error: BaseException) -> str:
    """Return the last line of the user's own code in an error's traceback, as "file.py, line 3"; empty without one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_OTHERS, "<frozen "))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def one_line(error: BaseException) -> str:
    """Return the error's type and the first line of its message, shortened."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    first = lines[0] if len(lines[0]) <= LINE_MAX else lines[0][: LINE_MAX - 1] + "…"
    return f"{type(error).__name__}: {first}"


class user_code:  # noqa: N801 - a block, named as those of contextlib are
    """Block of the user's code: its exceptions become `LearnerFailed`; shoal's own errors pass.

    Not a generator, which takes twice as long: each task of a simulation enters several blocks.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ShoalError):
            raise failure_of(error, self._doing) from error


def failure_of(error: Exception, doing: str) -> LearnerFailed:
    """Return the failure of the user's code that an exception is, with file, line and what to do."""
    where = error_location(error)
    message = f"{doing} failed{f' in {where}' if where else ''}: {one_line(error)}"
    failure = LearnerFailed(message, hint=_hint(error))
    failure.__cause__ = error
    if is_out_of_memory(error):
        traceback.clear_frames(error.__traceback__)  # the step's tensors, which the next attempt needs the room of
    return failure


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, by name, because this module is used where torch is not loaded."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and any(text in str(error) for text in MEMORY_TEXTS)


def _hint(error: Exception) -> str:
    if isinstance(error, ShoalError) and error.hint:
        return error.hint
    if is_out_of_memory(error):
        return MORE_MEMORY
    if "DataLoader worker (pid" in str(error):
        return LOST_WORKER
    if "more than 1 value per channel" in str(error):
        return (
            "BatchNorm cannot train on one example: give each node at least two and use another batch_size or a "
            "DataLoader with drop_last=True; or use GroupNorm"
        )
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} in the environment that shoal runs in"
    return IN_THE_LOG
