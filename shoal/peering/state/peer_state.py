"""The folder of one peer in one job. One process at a time works with it.

job.toml  charter.json  roster.json  key.pem      what `shoal peer new` has made: given to the node once
boot                   the number of its last start: beside the key, whose requests it numbers; see `next_boot`
state/lock             held by that process
state/standing.json    what the peer must not forget; replaced as a whole, before anything is told
state/bodies/          models, by the SHA-256 of their bytes
state/made/            what the training process has made, until it is taken over
state/training/  state/judging/    bodies on their way to training processes, and from them
state/gate.json        what was taken of each sender's requests
state/bytes.json       see `ledger`
state/address          where the process answers, for commands on the same machine
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from shoal.core.errors import InvalidJob, Refused, StorageFailed
from shoal.core.machine import Result
from shoal.core.message import Ref
from shoal.core.tree import FLOATS, Tree, to_float
from shoal.plugins import algorithms
from shoal.runtime.store import CrashPoint, FileBodies, make_folder, no_crash, storing, write_file
from shoal.spec import JobSpec, load_job
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.keys import Key, load_or_make, next_boot
from shoal.trust.papers import Charter, Peer, Roster, open_charter, unseal

PAPERS = ("job.toml", "charter.json", "roster.json", "key.pem")


@dataclass(frozen=True)
class Papers:
    """What a peer is given: the job, whose word counts in it, who takes part, and who it is itself."""

    spec: JobSpec
    charter: Charter
    roster: Roster
    sealed_roster: bytes
    key: Key
    me: Peer
    certificate: bytes = b""
    """Shown to peers that do not know this one."""

    @property
    def roster_names(self) -> frozenset[str]:
        """Who is in by the roster."""
        return frozenset(peer.node for peer in self.roster.peers)

    @property
    def others(self) -> list[Peer]:
        """The roster without this peer."""
        return [peer for peer in self.roster.peers if peer.node != self.me.node]


def read_papers(folder: Path, roster: Path | None = None) -> Papers:
    """The papers in a folder; `roster`: another one, which counts where it is newer than that in there.

    Raises `InvalidJob` for what is missing, and what the papers themselves raise.
    """
    for name in PAPERS:
        if not (folder / name).is_file():
            hint = "shoal peer new JOB.toml makes such folders, one for each peer"
            raise InvalidJob(f"no {name} in {folder}", code="peer.folder", hint=hint)
    with storing(folder):
        charter = open_charter((folder / "charter.json").read_bytes())
        texts = [path.read_bytes() for path in (roster, folder / "roster.json") if path is not None]
    sealed = max(texts, key=lambda text: unseal(text, Roster, charter).version)
    found = unseal(sealed, Roster, charter)
    key = load_or_make(folder / "key.pem")
    me = next((peer for peer in found.peers if peer.peer_id == key.peer_id), None)
    if me is None:
        hint = "has the operator removed this node, or was the key replaced?"
        raise InvalidJob(f"the roster does not name the key of {folder}", code="peer.stranger", hint=hint)
    spec = load_job(folder / "job.toml")
    if spec.name != charter.job or config_sha(folder / "job.toml") != charter.config_sha:
        hint = "all peers run the very same file: take it from the operator again"
        raise InvalidJob(f"{folder / 'job.toml'} is not the job of the charter", code="peer.config", hint=hint)
    return Papers(spec, charter, found, sealed, key, me)


def check_job(spec: JobSpec) -> None:
    """Raise `InvalidJob` for a job that peers cannot run by themselves."""
    algorithm = spec.build_algorithm()
    if algorithm.based:
        raise InvalidJob(
            f"{algorithm.name} goes on until a server asks for its report; there is none",
            code="job.fit",
            hint="use fedavg: gossip averages by itself",
        )
    if not algorithm.gossips:
        able = [name for name, kind in algorithms().items() if kind.gossips and not kind.based]
        raise InvalidJob(
            f"{algorithm.name} keeps more than the model at a server; there is none",
            code="job.fit",
            hint=f"choose one of {', '.join(able)}",
        )
    used = spec.shown_through()
    for one in spec.build_filters():
        if one not in used:
            mixing = spec.gossip.build_mixing()
            why = "" if mixing.filtered else f" under {mixing.name}: what it loses would move the mean"
            raise InvalidJob(
                f"peers cannot show their models through the filter {one.name}{why}",
                code="job.fit",
                hint="half and quantize with 8 bits can be used, under mixing pairwise and neighbours; leave it out",
            )


def config_sha(path: Path) -> str:
    """What names a job file."""
    with storing(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


class Awaited:
    """Bodies that have come, or were put, and that no machine names yet: they must not be swept away. Any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hold(self, digest: str) -> None:
        """Await this body. Counted: the same may come twice at once."""
        with self._lock:
            self._counts[digest] += 1

    def release(self, digests: Iterable[str]) -> None:
        """These have been acted on."""
        with self._lock:
            self._counts.subtract(digests)
            self._counts = +self._counts

    @contextmanager
    def still(self) -> Iterator[set[str]]:
        """Who is awaited; nobody more until the context ends."""
        with self._lock:
            yield set(self._counts)


class Desk:
    """What a peer's process works with, and what it leaves to the next one. A context manager; see above.

    With `books`, what this peer has learned is summed up beside its model, as weightless displacements in double
    precision: so that anybody can check that nothing was lost or counted twice. That costs two models of disk.
    """

    def __init__(self, folder: Path, *, books: bool = False, at: CrashPoint = no_crash) -> None:
        self.folder, self._books, self._at = folder / "state", books, at
        self.awaited = Awaited()
        self._lock = -1
        self._learned: Ref | None = None
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
        self.bodies = FileBodies(self.folder / "bodies", self._at)
        self.made = FileBodies(self.folder / "made")
        self.bodies.sweep()
        self.bodies.drop_partials(0.0)
        self.made.sweep()
        self.made.keep_only(())
        self.boot = next_boot(self.folder.parent / "boot")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._lock)

    # What the machine must not forget

    def load(self) -> dict[str, Any] | None:
        """What an earlier process has kept; None if none has. Raises `StorageFailed` when it is damaged."""
        path = self.folder / "standing.json"
        with storing(path):
            if not path.exists():
                return None
            text = path.read_bytes()
        try:
            found = json.loads(text)
            state: dict[str, Any] = found["gossip"]
            self._learned = Ref(*found["learned"]) if found["learned"] else None
            ref = Ref(*state["slots"])
        except (ValueError, KeyError, TypeError) as error:
            hint = "remove the folder `state`: this peer then begins anew, and what only it had learned is lost"
            raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint=hint) from None
        self.bodies.open(ref)
        return state

    def keep(self, state: dict[str, Any]) -> None:
        """Replace what is kept, durably."""
        ref = self._learned
        values = {"gossip": state, "learned": [ref.digest, ref.nbytes] if ref is not None else None}
        write_file(self.folder / "standing.json", json.dumps(values).encode(), "standing", self._at)

    def adopt(self, result: Result) -> None:
        """Take over what the training process has made."""
        for ref in (result.body, result.memory):
            if ref is not None and self.made.has(ref.digest):
                self.bodies.adopt(self.made.path(ref.digest), ref)

    def sweep(self, names: Iterable[Ref]) -> None:
        """Remove the bodies that nobody names any more."""
        named = {ref.digest for ref in names} | ({self._learned.digest} if self._learned else set())
        with self.awaited.still() as awaited:
            self.bodies.keep_only(named | awaited)

    # The books

    def book(self, before: Tree, after: Tree) -> None:
        """This is what a round has taught; kept with the next standing."""
        if self._books and after is not before:
            total = self.learned()
            moved = doubles(after, before)
            self._total = moved if total is None else doubles(total, moved, sign=1.0)
            self._learned = self.bodies.put({"learned": self._total})

    def learned(self) -> Tree | None:
        """The sum of what this peer has learned, as far as it is kept."""
        if self._total is None and self._learned is not None:
            found = self.bodies.get(self._learned)["learned"]
            assert isinstance(found, Tree)
            self._total = found
        return self._total

    # Who was heard

    def gatekeeper(self, papers: Papers) -> Gatekeeper:
        """The door, with what earlier processes knew, and the roster of the papers."""
        return gatekeeper(self.folder / "gate.json", papers)

    def keep_gate(self, snapshot: dict[str, Any]) -> None:
        """Remember what was taken of each sender."""
        write_file(self.folder / "gate.json", json.dumps(snapshot).encode(), "gate", self._at)


def gatekeeper(path: Path, papers: Papers) -> Gatekeeper:
    """The door: with what that file has kept, and the papers' roster."""
    with storing(path):
        text = path.read_bytes() if path.exists() else b""
    gate = Gatekeeper(papers.charter, papers.key.peer_id)
    if text:
        try:
            gate = Gatekeeper.restore(papers.charter, papers.key.peer_id, json.loads(text))
        except ValueError as error:
            raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint="remove it") from None
    gate.take_roster(papers.sealed_roster)
    return gate


def doubles(one: Tree, other: Tree, *, sign: float = -1.0) -> Tree:
    """`one + sign * other`, of their floating-point tensors, in double precision."""
    parts = {}
    for leaf in one.layout.leaves:
        if leaf.dtype in FLOATS:
            left, right = (
                to_float(tree.block(tree.layout.index[leaf.name].start, tree.layout.index[leaf.name].stop), kind)
                for tree, kind in ((one, leaf.dtype), (other, other.layout.index[leaf.name].dtype))
            )
            parts[leaf.name] = (np.asarray(left) + sign * np.asarray(right)).reshape(leaf.shape)
    return Tree.of(parts)
