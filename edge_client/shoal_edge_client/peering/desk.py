"""What a node that may carry on by itself must not forget of one job, beside what a worker must not: see `spool`.

FOLDER/peer/standing.json   the machine's state, and the books; replaced as a whole before anything is told
FOLDER/peer/job.json        the job as its page showed it: to take it up while the coordinator does not answer
FOLDER/peer/papers.json     the charter and the newest roster
FOLDER/peer/checkpoints.json   the newest versions that the coordinator has signed, and their models' names
FOLDER/peer/grant.json      which coordinator has which term
FOLDER/peer/gate.json       what was taken of each sender's requests
FOLDER/peer/bytes.json      bytes by peer

Bodies come here from four sides at once (orders, training, the machine, other peers), so none is removed while it is
awaited: from when it is there until the event that it belongs to has been fed, and the machine's names are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import strict_json
from shoal.core.failover import Grant
from shoal.core.machine import Result
from shoal.core.message import Ref, Report, ref_of
from shoal.core.tree import Slots
from shoal.runtime.store import CrashPoint, FileBody, make_folder, no_crash, storing, write_file
from shoal.wire import ByteSource
from shoal_edge_client.spool import Kept, Spool
from shoal_peer.folder import Awaited


@dataclass(frozen=True)
class Stood:
    """What an earlier process was: `Peer.kept`, and its books."""

    peer: dict[str, Any]
    books: list[float] | None


class Desk(Spool):
    """One job's files. Crash points: those of a spool, and standing.…, papers.…, checkpoints.…"""

    def __init__(self, folder: Path, job: str, at: CrashPoint = no_crash) -> None:
        super().__init__(folder, job, at)
        self.awaited = Awaited()
        self._pending: Ref | None = None
        self._vouched = {ref.digest for _, ref in self.checkpoints()}

    @property
    def peer_folder(self) -> Path:
        """Where everything that is a peer's lies."""
        return self.folder / "peer"

    # What an earlier process has left

    def load(self) -> Kept:
        kept = super().load()
        self._pending = kept.pending
        if kept.said is not None and kept.said.body is not None and kept.said.body.digest in self._small:
            self.bodies.keep(kept.said.body, self._small[kept.said.body.digest])
        return kept

    def standing(self) -> Stood | None:
        """What the machine of an earlier process was. What is damaged is named in the log and given up."""
        found: Stood | None = self._read("peer/standing.json", self._load_standing)
        return found

    def _load_standing(self, data: bytes) -> Stood:
        values = strict_json.kept(data)
        peer = values["peer"]
        if peer["gossip"] is not None:
            self._checked_ref(peer["gossip"]["slots"])
        if peer["model"] is not None and not self._is_whole(ref_of(peer["model"])):
            peer |= {"version": -1, "model": None}  # it had not come whole
        books = values["books"]
        return Stood(peer, [float(one) for one in books] if books is not None else None)

    def _checked_ref(self, values: list[Any]) -> None:
        self._checked({"digest": values[0], "nbytes": values[1]})

    def _is_whole(self, ref: Ref | None) -> bool:
        return ref is not None and self.bodies.check(ref)

    def page(self) -> dict[str, Any] | None:
        """The job as its page showed it."""
        found: dict[str, Any] | None = self._read("peer/job.json", strict_json.kept)
        return found

    def papers(self) -> dict[str, Any] | None:
        """Papers as they came."""
        found: dict[str, Any] | None = self._read("peer/papers.json", strict_json.kept)
        return found

    def grant(self) -> Grant:
        """Which coordinator has which term; blocks."""
        return self._read("peer/grant.json", _grant) or Grant()

    def checkpoints(self) -> list[tuple[bytes, Ref]]:
        """Manifests as they came, and the models that they were kept with; nothing of this is checked yet."""
        return self._read("peer/checkpoints.json", _checkpoints) or []

    # What must last

    def keep(self, standing: dict[str, Any], books: list[float] | None) -> None:
        """Replace what the machine must not forget, durably."""
        self._write("standing", {"peer": standing, "books": books})

    def keep_page(self, found: Mapping[str, Any]) -> None:
        """Remember the job as its page shows it."""
        self._write("job", {"spec": found["spec"], "created_at": found["created_at"]})

    def keep_papers(self, values: dict[str, Any]) -> None:
        """Remember papers that have been checked."""
        self._write("papers", values)

    def keep_grant(self, grant: Grant) -> None:
        """Remember, durably, which coordinator has which term."""
        self._write("grant", {"term": grant.term, "life": grant.life})

    def keep_checkpoints(self, found: Sequence[tuple[bytes, Ref]]) -> None:
        """Remember these manifests and keep their models, durably, in place of those before."""
        named = {ref.digest for _, ref in found}
        self._vouched |= named
        rows = [{"manifest": sealed.decode("ascii"), "model": [ref.digest, ref.nbytes]} for sealed, ref in found]
        self._write("checkpoints", {"checkpoints": rows})
        self._vouched = named

    def _write(self, what: str, values: dict[str, Any]) -> None:
        make_folder(self.peer_folder)
        write_file(self.peer_folder / f"{what}.json", json.dumps(values).encode(), what, self._at)

    # Bodies

    def put(self, body: Slots | FileBody) -> Ref:
        return self._awaited_put(body)

    def remember(self, memory: Slots | FileBody) -> Ref:
        return self._awaited_put(memory)

    def hold(self, base: Slots | FileBody) -> Ref:
        ref = self._awaited_put(base)
        self._base = ref
        self.awaited.release([ref.digest])
        return ref

    def _awaited_put(self, slots: Slots | FileBody) -> Ref:
        if isinstance(slots, FileBody):
            self.awaited.hold(slots.ref.digest)
            return self.bodies.take(slots)
        ref = self.bodies.put(slots)
        self.awaited.hold(ref.digest)
        return self.bodies.put(slots) if not self.bodies.has(ref.digest) else ref  # swept away in between

    @contextmanager
    def awaiting(self, ref: Ref | None) -> Iterator[None]:
        """While open, that body is not swept away."""
        digests = [ref.digest] if ref is not None else []
        for digest in digests:
            self.awaited.hold(digest)
        try:
            yield
        finally:
            self.awaited.release(digests)

    def adopted(self, result: Result | None) -> None:
        """The machine has been told of this result: from now on it names what it needs of it."""
        if result is not None:
            self.awaited.release(ref.digest for ref in (result.body, result.memory) if ref is not None)

    def said(self, said: Report | None, pending: Ref | None) -> None:
        self._pending = pending
        if said is not None:
            super().said(said, pending)
            return
        path = self.folder / "report"
        with storing(path):
            path.unlink(missing_ok=True)
        self._at("spool.removed")

    def payload(self, ref: Ref) -> ByteSource:
        return self.bodies.open(ref)

    def sweep(self, names: Iterable[Ref]) -> None:
        """Remove the bodies that neither these nor the spool name, and that nobody awaits."""
        own = {ref.digest for ref in (self._memory, self._pending, self._base) if ref is not None}
        with self.awaited.still() as awaited:
            self.bodies.keep_only(own | awaited | self._vouched | {ref.digest for ref in names})


def _grant(data: bytes) -> Grant:
    values = strict_json.kept(data)
    return Grant(int(values["term"]), int(values["life"]))


def _checkpoints(data: bytes) -> list[tuple[bytes, Ref]]:
    rows = strict_json.kept(data)["checkpoints"]
    return [(str(row["manifest"]).encode("ascii"), _ref(*row["model"])) for row in rows]


def _ref(digest: str, nbytes: int) -> Ref:
    return Ref(str(digest), int(nbytes))
