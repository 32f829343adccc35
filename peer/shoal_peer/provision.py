"""`shoal peer new`: a folder for an operator, with one in it for each peer of a job that never had a server.

    FOLDER/operator.pem       whose word counts: to be kept safe, and off the peers' machines
    FOLDER/NAME/job.toml  charter.json  roster.json  key.pem

Whoever holds FOLDER/NAME takes part as NAME, so it must reach its machine by a way that is trusted. Where a key must
never travel, the node makes its own (`shoal peer key`) and the operator is given its public half.

Called again on the same folder, it admits more peers, or moves some: a new roster, which says that it is newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.errors import InvalidJob
from shoal.core.tree import Tree
from shoal.runtime.store import make_folder, storing, write_file
from shoal.spec import load_job
from shoal.trust.keys import Key, load_or_make, peer_id_of
from shoal.trust.papers import Charter, Peer, Roster, open_charter, schema_sha, seal, unseal
from shoal_peer.admission import changing
from shoal_peer.folder import check_job, config_sha


@dataclass(frozen=True)
class Invited:
    """Somebody who is to take part. `pub`: the public half of a key of its own; empty: a key is made for it.

    `examples`: the greatest weight that it may claim; 0: any.
    """

    node: str
    url: str
    pub: str = ""
    examples: int = 0


def invite(job: Path, model: Tree, peers: Sequence[Invited], folder: Path) -> Roster:
    """Write the folders. Raises `InvalidJob`, `StorageFailed`, and what papers raise."""
    spec = load_job(job)
    check_job(spec)
    make_folder(folder)
    with changing(folder):
        return _signed(job, spec.name, model, peers, folder)


def _signed(job: Path, job_name: str, model: Tree, peers: Sequence[Invited], folder: Path) -> Roster:
    """Write the papers, while the folder is locked."""
    operator = load_or_make(folder / "operator.pem")
    charter = Charter(job_name, config_sha(job), schema_sha(model), operator.pub, operator.pub)
    held = _held(folder, charter)
    members = {peer.node: peer for peer in (held.peers if held is not None else ())}
    keys: dict[str, Key] = {}
    for one in peers:
        if not one.pub:
            make_folder(folder / one.node)
            keys[one.node] = load_or_make(folder / one.node / "key.pem")
        pub = one.pub or keys[one.node].pub
        urls = (one.url,) if one.url else ()
        members[one.node] = Peer(one.node, peer_id_of(pub), pub, urls, bool(urls), one.examples)
    listed = tuple(members[name] for name in sorted(members))
    roster = Roster(job_name, 1, listed) if held is None else replace(held, version=held.version + 1, peers=listed)
    sealed = {"charter.json": seal(charter, operator, charter), "roster.json": seal(roster, operator, charter)}
    with storing(job):
        sealed["job.toml"] = job.read_bytes()
    invited = {one.node for one in peers}
    for node in (node for node in members if node in invited or (folder / node).is_dir()):
        make_folder(folder / node)
        for name, text in sealed.items():
            write_file(folder / node / name, text, "paper")
    for name, text in sealed.items():
        write_file(folder / name, text, "paper")
    return roster


def _held(folder: Path, charter: Charter) -> Roster | None:
    """The roster of an earlier call, if it was for the same job."""
    path = folder / "charter.json"
    with storing(folder):
        if not path.exists():
            return None
        if open_charter(path.read_bytes()) != charter:
            hint = "choose another folder with --out; a running job's file is never changed"
            raise InvalidJob(
                f"{folder} belongs to another job, or to another form of it", code="peer.config", hint=hint
            )
        return unseal((folder / "roster.json").read_bytes(), Roster, charter)
