"""Requests that all ranks of a site hear, and their common answer.

Rank 0 reads requests from its node and broadcasts them. To ranks that torchrun has started it sends the files that they
name, so that other machines need no shared folder. All ranks do what is asked; only rank 0 answers, with the error of
another rank if it has one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from shoal.core.errors import Cancelled, InvalidJob
from shoal.core.model.tree import Slots
from shoal.runtime.durable_files import write_all
from shoal.runtime.training.ipc import FILES, error_fields
from shoal.runtime.training.site.group import RankGroup, is_started_here

TRAINING = ("run_step", "count_examples")
"""Requests in which the ranks wait for each other's gradients."""
LOSS = ("gloo/transport", "Connection closed by peer", "DistBackendError", "DistNetworkError", "NCCL")
"""Texts of the error in the sum of gradients of a group that is not complete."""
CHUNK_BYTES = 64 << 20
"""Bytes of a file that are sent at once."""
HEARTBEAT_S = 60.0
"""Seconds without a request after which the other ranks hear that rank 0 is still there."""


class Writer(Protocol):
    """The writer of a process's answers, and the number of the present request."""

    asked: int

    def send(self, reply: Mapping[str, Any]) -> None: ...

    def progress(self, fraction: float) -> None: ...


class SilentWriter:
    """The writer of a rank that does not answer."""

    asked = 0

    def send(self, reply: Mapping[str, Any]) -> None:
        """Say nothing."""

    def progress(self, fraction: float) -> None:
        """Say nothing."""


class NoBlobs:
    """The results of a rank that does not answer: they are dropped."""

    def put(self, slots: Slots) -> None:
        """Store nothing."""


class SiteRequests:
    """The requests of rank 0, at each rank. `own`: those of the node, at rank 0."""

    def __init__(self, group: RankGroup, own: SimpleQueue[dict[str, Any]] | None = None) -> None:
        self._group, self._site, self._own = group, group.site, own
        self._copies = ExitStack()

    def get(self) -> dict[str, Any]:
        """Return the next request, whose files are on this machine until the request after it."""
        self._copies.close()
        data = b""
        with self._group.needed():
            while not data:
                data = self._site.broadcast(self._next() if self._own is not None else b"")
            asked: dict[str, Any] = json.loads(data)
            self._group.is_awaited = asked.get("do") in TRAINING
            for name in FILES:
                if asked.get(name) and not is_started_here():
                    asked[name] = self._shared(asked[name])
        return asked

    def _next(self) -> bytes:
        assert self._own is not None
        try:
            return json.dumps(self._own.get(timeout=HEARTBEAT_S)).encode()
        except Empty:
            return b""

    def _shared(self, path: str) -> str:
        """Give rank 0's file to all ranks, and return its path here."""
        if self._own is not None:
            with Path(path).open("rb") as source:
                while self._site.broadcast(source.read(CHUNK_BYTES)):
                    pass
            return path
        without_name = tempfile.TemporaryFile()  # noqa: SIM115 - open until the next request; a kill leaves no file
        copy = self._copies.enter_context(without_name).fileno()
        while piece := self._site.broadcast():
            write_all(copy, piece)
        return f"/dev/fd/{copy}"


class SiteWriter:
    """The writer of the common answer of all ranks."""

    def __init__(self, own: Writer, group: RankGroup) -> None:
        self._own, self._group = own, group
        self.progress = own.progress

    @property
    def asked(self) -> int:
        """The number of the present request."""
        return self._own.asked

    @asked.setter
    def asked(self, number: int) -> None:
        self._own.asked = number

    def send(self, reply: Mapping[str, Any]) -> None:
        """Answer at rank 0, once all ranks have an answer or one has an error."""
        error = reply.get("error")
        if error and error["kind"] != Cancelled.__name__ and self._group.is_awaited:
            self._leave(error)
        known = {name: reply[name] for name in ("error", "model_form", "examples", "compute") if name in reply}
        with self._group.needed():
            found = [json.loads(one) for one in self._group.site.gather(json.dumps(known).encode())]
        fault = next(filter(None, (_fault(rank, one, found[0]) for rank, one in enumerate(found))), None)
        if fault is None and "compute" in reply:
            devices = [device for one in found for device in one["compute"]["devices"]]
            reply = {**reply, "compute": {**reply["compute"], "devices": devices}}
        self._own.send(reply if fault is None else {"error": fault})
        if fault is None and "ready" in reply:  # the node may wait for its first task meanwhile
            with self._group.needed():
                self._group.site.prepare()

    def _leave(self, error: dict[str, Any]) -> None:
        """End this rank, whose error may be its own alone, and with it the group; rank 0 answers before."""
        told = json.dumps(_named(self._group.site.rank, error)).encode()
        is_lost = _is_loss_of_rank(error)
        if self._group.site.rank:
            if is_lost:
                self._group.end(error["message"])
            self._group.leave(told)
        if is_lost:
            told = self._group.failure()
        if told:
            self._own.send({"error": json.loads(told)})
        self._group.end(error["message"])


def _fault(rank: int, found: dict[str, Any], first: dict[str, Any]) -> dict[str, Any] | None:
    """Return the error of a rank, or one that tells that its learner is another than rank 0's."""
    if "error" in found:
        return _named(rank, found["error"])
    for name, what in (("model_form", "model"), ("examples", "number of examples")):
        if found.get(name) != first.get(name):
            text = f"rank {rank}'s {what} differs from rank 0's"
            hint = "all processes of a node load the same learner with the same data, of which each trains on its rows"
            return error_fields(InvalidJob(text, code="learner.processes", hint=hint), "")
    return None


def _named(rank: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return the error with the rank that has it: torchrun's may be on another machine."""
    return {**error, "message": f"rank {rank}: {error['message']}"} if rank else error


def _is_loss_of_rank(error: Mapping[str, Any]) -> bool:
    """Return whether an answer's error came of a rank that has ended, which torch tells by a text."""
    text = f"{error['message']} {error['traceback']}"
    return any(word in text for word in LOSS)
