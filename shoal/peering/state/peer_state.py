"""The folder of one peer in one job. One process at a time works with it.

job.toml  charter.json  roster.json  key.pem      made by `shoal peer init`, given to the node once
process-number         the number of its last process, beside the key of its requests; see `next_process_number`
state/lock             held by that process
state/machine.json     the machine's state; replaced as a whole before a message is sent
state/blobs/          models, by the SHA-256 of their bytes
state/trained/            results of the training process, until the peer adopts them
state/training/  state/evaluation/    blobs on their way to and from training processes
state/windows.json     request numbers of each sender
state/bytes.json       see `byte_counts`
state/address          where the process answers, for commands on the same machine
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from shoal.core.errors import InvalidJob, Refused
from shoal.core.model.tree import FLOATS, Tree, to_float
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef
from shoal.jobs.spec import JobSpec, load_job
from shoal.peering.state.blob_holds import BlobHolds
from shoal.peering.state.peer_blobs import PeerBlobs
from shoal.plugins import algorithms
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, make_folder, no_crash, read_json, storing, write_file
from shoal.trust.documents import Charter, Roster, RosterEntry, open_charter, verify_document
from shoal.trust.keys import SigningKey, load_or_create, next_process_number
from shoal.trust.request_verifier import RequestVerifier

DOCUMENT_FILES = ("job.toml", "charter.json", "roster.json", "key.pem")


@dataclass(frozen=True)
class PeerDocuments:
    """The documents of a peer: job, charter, roster, its key and its own roster entry."""

    spec: JobSpec
    charter: Charter
    roster: Roster
    sealed_roster: bytes
    key: SigningKey
    me: RosterEntry
    certificate: bytes = b""
    """Shown to peers that do not know this one."""

    @property
    def roster_names(self) -> frozenset[str]:
        return frozenset(peer.node for peer in self.roster.peers)

    @property
    def others(self) -> list[RosterEntry]:
        """Return the roster without this peer."""
        return [peer for peer in self.roster.peers if peer.node != self.me.node]


def read_documents(folder: Path, roster: Path | None = None) -> PeerDocuments:
    """Return the documents in a folder. `roster`: another roster file, used if it is newer.

    Raises `InvalidJob` for what is missing, and the errors of the documents themselves.
    """
    for name in DOCUMENT_FILES:
        if not (folder / name).is_file():
            hint = "shoal peer init JOB.toml makes such folders, one for each peer"
            raise InvalidJob(f"no {name} in {folder}", code="peer.folder", hint=hint)
    with storing(folder):
        charter = open_charter((folder / "charter.json").read_bytes())
        texts = [path.read_bytes() for path in (roster, folder / "roster.json") if path is not None]
    sealed = max(texts, key=lambda text: verify_document(text, Roster, charter).version)
    found = verify_document(sealed, Roster, charter)
    key = load_or_create(folder / "key.pem")
    me = next((peer for peer in found.peers if peer.peer_id == key.peer_id), None)
    if me is None:
        hint = "the operator may have removed this node, or replaced its key"
        raise InvalidJob(f"the roster does not name the key of {folder}", code="peer.stranger", hint=hint)
    spec = load_job(folder / "job.toml")
    if spec.name != charter.job or config_sha(folder / "job.toml") != charter.config_sha:
        hint = "all peers run the very same file: take it from the operator again"
        raise InvalidJob(f"{folder / 'job.toml'} is not the job of the charter", code="peer.config", hint=hint)
    return PeerDocuments(spec, charter, found, sealed, key, me)


def check_job(spec: JobSpec) -> None:
    """Raise `InvalidJob` for a job that peers cannot run by themselves."""
    algorithm = spec.build_algorithm()
    if algorithm.continual and algorithm.schedules[0] != "synchronous":  # else it reports without being asked
        raise InvalidJob(
            f"{algorithm.name} trains until a server asks for its report, and peers have no server",
            code="job.fit",
            hint="use fedavg: gossip averages by itself",
        )
    if not algorithm.mixed_slots:
        able = [name for name, kind in algorithms().items() if kind.mixed_slots and kind.schedules[0] == "synchronous"]
        raise InvalidJob(
            f"{algorithm.name} keeps state at a server besides the model, and peers have no server",
            code="job.fit",
            hint=f"choose one of {', '.join(able)}",
        )
    if spec.stages:
        raise InvalidJob(
            "a network grows at a coordinator, and peers have none", code="job.fit", hint="leave the stages out"
        )
    used = spec.shown_through()
    for one in spec.build_filters():
        if one not in used:
            mixing = spec.gossip.build_mixing()
            why = "" if mixing.supports_filters else f" under {mixing.name}: what it loses would move the mean"
            raise InvalidJob(
                f"peers cannot show their models through the filter {one.name}{why}",
                code="job.fit",
                hint="half and quantize with 8 bits can be used, under mixing pairwise and neighbors; leave it out",
            )


def config_sha(path: Path) -> str:
    """Return the SHA-256 of a job file."""
    with storing(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


class PeerState:
    """State of a peer's process on disk. A context manager; see above.

    With `audit`, the sum of this peer's updates is stored beside its model in double precision, so that a test can
    check that nothing was lost or counted twice. That costs two models of disk.
    """

    def __init__(self, folder: Path, *, audit: bool = False, at: CrashPoint = no_crash) -> None:
        self.folder, self._audit, self._at = folder / "state", audit, at
        self.holds = BlobHolds()
        self._lock = -1
        self._learned: BlobRef | None = None
        self._total: Tree | None = None

    def __enter__(self) -> Self:
        make_folder(self.folder)
        with storing(self.folder):
            self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                text, hint = f"another process works with {self.folder}", "end it; each peer has a folder of its own"
                raise Refused(text, code="state.locked", hint=hint) from None
        self.blobs = PeerBlobs(self.folder / "blobs", self._at)
        self.results = FileBlobs(self.folder / "trained")
        self.blobs.sweep()
        self.blobs.partials.drop(0.0)
        self.results.sweep()
        self.results.keep_only(())
        self.process_number = next_process_number(self.folder.parent / "process-number")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._lock)

    # The machine

    def load(self) -> dict[str, Any] | None:
        """Return the machine's saved state; None without one. Raises `StorageFailed` for a damaged one."""
        hint = "remove the folder `state`: this peer then starts again, and its own unshared training is lost"
        found = read_json(self.folder / "machine.json", _saved_machine, hint)
        if found is None:
            return None
        state, ref, self._learned = found
        self.blobs.open(ref)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the machine's saved state durably."""
        ref = self._learned
        values = {"gossip": state, "learned": [ref.digest, ref.nbytes] if ref is not None else None}
        write_file(self.folder / "machine.json", json.dumps(values).encode(), "machine", self._at)

    def adopt_result(self, result: TaskResult) -> None:
        """Move the blobs of a training result to this peer's blobs."""
        for ref in (result.blob, result.memory):
            if ref is not None and self.results.has(ref.digest):
                self.blobs.adopt(self.results.path(ref.digest), ref)

    def sweep(self, names: Iterable[BlobRef]) -> None:
        """Remove blobs that nothing names."""
        named = {ref.digest for ref in names} | ({self._learned.digest} if self._learned else set())
        self.holds.sweep(self.blobs, named)

    # The audit

    def record_update(self, before: Tree, after: Tree) -> None:
        """Add the change by a local round to the learned total; saved with the next state."""
        if self._audit and after is not before:
            total = self.learned_total()
            moved = doubles(after, before)
            self._total = moved if total is None else doubles(total, moved, sign=1.0)
            self._learned = self.blobs.put({"learned": self._total})

    def learned_total(self) -> Tree | None:
        """Return the sum of this peer's updates, if it is recorded."""
        if self._total is None and self._learned is not None:
            found = self.blobs.get(self._learned)["learned"]
            assert isinstance(found, Tree)
            self._total = found
        return self._total


def load_verifier(path: Path, documents: PeerDocuments) -> RequestVerifier:
    """Load the request verifier with its saved windows and the roster of the documents."""
    charter, peer_id = documents.charter, documents.key.peer_id
    saved = read_json(path, partial(RequestVerifier.restore, charter, peer_id))
    verifier = saved if saved is not None else RequestVerifier(charter, peer_id)
    verifier.update_roster(documents.sealed_roster)
    return verifier


def _saved_machine(values: Any) -> tuple[dict[str, Any], BlobRef, BlobRef | None]:
    """Return the machine's state, the blob that it names, and the blob of the learned total."""
    state = values["gossip"]
    return state, BlobRef(*state["slots"]), BlobRef(*values["learned"]) if values["learned"] else None


def doubles(one: Tree, other: Tree, *, sign: float = -1.0) -> Tree:
    """Return `one + sign * other` of floating-point tensors, in double precision."""
    parts = {}
    for leaf in one.layout.leaves:
        if leaf.dtype in FLOATS:
            left, right = (
                to_float(tree.block(tree.layout.index[leaf.name].start, tree.layout.index[leaf.name].stop), kind)
                for tree, kind in ((one, leaf.dtype), (other, other.layout.index[leaf.name].dtype))
            )
            parts[leaf.name] = (np.asarray(left) + sign * np.asarray(right)).reshape(leaf.shape)
    return Tree.of(parts)
