"""The base models that a node has fetched, by digest, and the one that its learner has now.

FOLDER/DIGEST         a base model as a safetensors file; it stays, for later jobs
FOLDER/used.json      the one in use, its job, and the learner's own, until the job ends
FOLDER/partial/       the received part of an interrupted download
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from shoal.core.errors import InvalidPayload, Refused, ShoalError
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, no_crash, storing, write_file
from shoal.validation.message_checks import is_digest
from shoal_edge_client.training.trainer_backend import TrainerBackend

FetchBlob = Callable[[str, FileBlobs, BlobRef], None]
"""Downloads a blob of a job into a folder, from the byte on that is missing there."""


class BaseModels:
    """Base models of one node. All methods block; those that load run in the training thread.

    Args:
        backend: has the learner, which is loaded.
        nbytes_max: maximum size of a base model.
    """

    def __init__(self, folder: Path, backend: TrainerBackend, nbytes_max: int, at: CrashPoint = no_crash) -> None:
        self.blobs = FileBlobs(folder, at)
        self.blobs.sweep()
        self._backend, self._nbytes_max, self._at = backend, nbytes_max, at
        self._used = folder / "used.json"
        self._own = self.digest
        self.job = ""
        """The job whose base model the learner has; empty: it has its own."""

    @property
    def digest(self) -> str:
        """Return the digest of the learner's present base model; empty if it has none."""
        return str((self._backend.model_form.get("model") or {}).get("base_model", ""))

    def wanted(self, description: Mapping[str, Any]) -> BlobRef | None:
        """Return the base model that a job offers, unless the learner has it or cannot have one."""
        shown = description.get("base_model") or {}
        digest, nbytes = str(shown.get("digest", "")), shown.get("bytes")
        if not self.digest or not is_digest(digest) or not isinstance(nbytes, int) or digest == self.digest:
            return None
        return BlobRef(digest, nbytes)

    def fetch(self, job: str, ref: BlobRef, download: FetchBlob) -> None:
        """Download a base model, unless it is here. Raises `ShoalError`."""
        if ref.nbytes > self._nbytes_max:
            text = f"it has {ref.nbytes} bytes; at most {self._nbytes_max} here"
            raise Refused(text, code="base.too-large", hint="raise base_bytes_max of the node")
        download(job, self.blobs, ref)

    def load(self, job: str, ref: BlobRef) -> None:
        """Load a base model that is here into the learner. Raises `ShoalError`."""
        self._load(ref.digest)
        self.job = job
        values = {"job": job, "digest": ref.digest, "own": self._own}
        write_file(self._used, json.dumps(values).encode(), "base", self._at)

    def _load(self, digest: str) -> None:
        self._backend.load_base(self.blobs.path(digest))
        if self.digest != digest:
            self.blobs.delete(digest)
            raise InvalidPayload("the file of the base model is damaged", code="payload.digest", hint="start again")

    def restore(self) -> None:
        """Load the base model of an earlier process, for a job that may go on without the coordinator."""
        with storing(self._used), suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            used = json.loads(self._used.read_bytes())
            if used["own"] != self._own or not self.blobs.has(used["digest"]):
                return
            try:
                self._load(used["digest"])
                self.job = str(used["job"])
            except ShoalError as error:
                structlog.get_logger("edge_client").warning("not the last base model", why=error.message)

    def give_up(self, job: str, running: Collection[str]) -> str:
        """Return what keeps the learner from a job that has its own base model, as the end of a sentence; "": nothing.

        `running`: jobs of this node.
        """
        other = self.job
        if other in ("", job, *running):
            return ""
        self.release(other)
        return f"; its learner has the base model of job {other}: start the node again"

    def release(self, job: str) -> None:
        """Note that a job has ended: the next process starts with the learner's own base model."""
        if job == self.job:
            self.job = ""
            with storing(self._used):
                self._used.unlink(missing_ok=True)
