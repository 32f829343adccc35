"""What the node's process and its training process say to each other: one JSON object per line.

    {"learner", "options", "device", "precision", "threads", "folder", "level"}     first of all
                                                    {"ready": true, "device": "cpu"}
    {"n": 1, "do": "init", "seed": 1}               {"model": [sha256, bytes], "examples": 359.0}
    {"n": 2, "do": "weigh", "seed": 1}              {"examples": 359.0}
    {"n": 2, "do": "fit", "job": {…}}               {"fits": true}, or an error
    {"n": 3, "do": "begin", "hand": 1, "job": {…}, "slots": "…", "base": "…", "memory": "…"}    {"begun": true}
    {"n": 4, "do": "piece", "hand": 1, "order": {…}}
                                                    {"check": 0, "base": null, "local": {…}}
                                                    {"check": 7, "base": null, "status": {…} or null}
    {"cancel": 4}                                   an answer to question 4 all the same, maybe an error
    {"drop": [1, 2]}                                none
                                                    {"tick": 0.5} now and then, while a question is being answered
                                                    {"error": {"kind", "code", "message", "hint", …}}

A body is a file: what is given is named by its path, and may be removed once the answer has come; what is made lies in
`folder`, under its SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from shoal.core import errors
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.message import Ref
from shoal.runtime.tracebacks import whence

LINE_BYTES_MAX = 16 << 20
"""A status names every metric and every number of a job; nothing that is said is near that long."""

_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ShoalError)}


class Brought(Protocol):
    """An error with the part of its traceback that is for people elsewhere, see `shoal.runtime.tracebacks`."""

    traceback_text: str


class Elsewhere(Exception):
    """The traceback of an error in another process, as text. It is the cause of what is raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def ref_said(ref: Ref | None) -> list[Any] | None:
    """A reference as it is written."""
    return [ref.digest, ref.nbytes] if ref is not None else None


def ref_read(values: Any) -> Ref | None:
    """The same, read."""
    return Ref(str(values[0]), int(values[1])) if values else None


def error_said(error: BaseException, traceback: str) -> dict[str, Any]:
    """What went wrong, as it is written. `traceback`: empty where it says nothing to the learner's author."""
    known = error if isinstance(error, ShoalError) else LearnerFailed(f"{type(error).__name__}: {error}"[:400])
    said = {"code": known.code, "message": known.message, "hint": known.hint}
    return {"kind": type(known).__name__, **said, "traceback": traceback, "whence": whence(error)}


def error_read(said: Mapping[str, Any]) -> ShoalError:
    """The same error of the tree, to be raised here."""
    kind = _KINDS.get(str(said["kind"]), LearnerFailed)
    error = kind(str(said["message"]), code=str(said["code"]), hint=str(said["hint"]))
    if said["traceback"]:
        error.__cause__ = Elsewhere(said["traceback"])
        cast("Brought", error).traceback_text = str(said["whence"])
    return error
