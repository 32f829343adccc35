"""Messages between the node's process and its training process: one JSON object per line.

    {"learner", "options", "device", "precision", "threads", "folder", "processes", "level"}
                                                    {"ready": true, "compute": {…}, "lacks": {…}, "model_form": {…}}
    {"n": 1, "do": "init", "seed": 1}               {"model": [sha256, bytes], "examples": 359.0}
    {"n": 2, "do": "count_examples", "seed": 1}     {"examples": 359.0}
    {"n": 2, "do": "check_job", "job": {…}}         {"fits": true}, or an error
    {"n": 3, "do": "start_task", "task_number": 1, "job": {…}, "slots": "…", "base": "…", "memory": "…"}
                                                    {"begun": true}
    {"n": 4, "do": "run_step", "task_number": 1, "task": {…}}
                                                    {"check": 0, "base": null, "local": {…}}
                                                    {"check": 7, "base": null, "status": {…} or null}
    {"cancel": 4}                                   an answer to question 4 all the same, maybe an error
    {"drop": [1, 2]}                                none
                                                    {"progress": 0.5} now and then, while a question is being answered
                                                    {"error": {"kind", "code", "message", "hint", …}}

Blobs are passed as files: inputs by path, which may be removed after the answer; outputs are in `folder`, under their
SHA-256. To a process on another machine (`command_process`) paths go relative to the shared folder, and it adds:

    {"timeout_s"}                                   in the first message
                                                    {"log": {"level", "event", …}}
                                                    {"ended": "…", "hint": "…"} as its last words
    {}                                              {} now and then, as signs of life
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from shoal.core import errors
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.protocol.message import BlobRef
from shoal.runtime.observability.tracebacks import traceback_text_of

LINE_BYTES_MAX = 16 << 20
"""A status names every metric and every number of a job; no message is nearly that long."""
FILES = ("slots", "base", "memory")
"""Keys of requests whose values are paths of files; an empty one names no file."""
PATHS = ("folder", *FILES)
"""Keys of requests whose values are paths."""

_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ShoalError)}


class HasTraceback(Protocol):
    """An error with the part of its traceback that is for people elsewhere, see
    `shoal.runtime.observability.tracebacks`."""

    traceback_text: str


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text. It is the cause of what is raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def ref_fields(ref: BlobRef | None) -> list[Any] | None:
    """Return a reference as JSON values."""
    return [ref.digest, ref.nbytes] if ref is not None else None


def ref_from(values: Any) -> BlobRef | None:
    """Return a reference from JSON values."""
    return BlobRef(str(values[0]), int(values[1])) if values else None


def error_fields(error: BaseException, traceback: str) -> dict[str, Any]:
    """Return an error as JSON values. `traceback`: empty if it adds nothing."""
    known = error if isinstance(error, ShoalError) else LearnerFailed(f"{type(error).__name__}: {error}"[:400])
    fields = {"code": known.code, "message": known.message, "hint": known.hint}
    return {"kind": type(known).__name__, **fields, "traceback": traceback, "traceback_text": traceback_text_of(error)}


def error_from(fields: Mapping[str, Any]) -> ShoalError:
    """Return the error from JSON values, to be raised."""
    kind = _KINDS.get(str(fields["kind"]), LearnerFailed)
    error = kind(str(fields["message"]), code=str(fields["code"]), hint=str(fields["hint"]))
    if fields["traceback"]:
        error.__cause__ = RemoteTraceback(fields["traceback"])
        cast("HasTraceback", error).traceback_text = str(fields["traceback_text"])
    return error
