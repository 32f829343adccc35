"""`shoal peer init`: a folder for an operator, with one in it for each peer of a job that never had a server.

    FOLDER/operator.pem       the operator's key: keep it safe, and off the peers' machines
    FOLDER/NAME/job.toml  charter.json  roster.json  key.pem

The folder FOLDER/NAME admits its holder as NAME, so copy it by a trusted way. If a key must not leave its machine, the
node makes its own (`shoal peer key`) and the operator receives its public half.

A second call on the same folder admits more peers, or changes addresses: it signs a newer roster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Tree
from shoal.jobs.spec import load_job
from shoal.peering.roster.roster_admission import changing
from shoal.peering.state.peer_state import check_job, config_sha
from shoal.runtime.durable_files import make_folder, storing, write_file
from shoal.trust.documents import Charter, Roster, RosterEntry, open_charter, schema_sha, sign_document, verify_document
from shoal.trust.keys import SigningKey, load_or_create, peer_id_of


@dataclass(frozen=True)
class InvitedNode:
    """An invited node. `public_key`: public half of its own key; empty: a key is made for it.

    `examples`: the largest weight that it may claim; 0: any.
    """

    node: str
    url: str
    public_key: str = ""
    examples: int = 0


def invite(job: Path, model: Tree, peers: Sequence[InvitedNode], folder: Path) -> Roster:
    """Write the folders. Raises `InvalidJob`, `StorageFailed`, and the errors of documents."""
    spec = load_job(job)
    check_job(spec)
    make_folder(folder)
    with changing(folder):
        return _signed(job, spec.name, model, peers, folder)


def _signed(job: Path, job_name: str, model: Tree, peers: Sequence[InvitedNode], folder: Path) -> Roster:
    """Write the documents, while the folder is locked."""
    operator = load_or_create(folder / "operator.pem")
    charter = Charter(job_name, config_sha(job), schema_sha(model), operator.public_key, operator.public_key)
    held = _held(folder, charter)
    members = {peer.node: peer for peer in (held.peers if held is not None else ())}
    keys: dict[str, SigningKey] = {}
    for one in peers:
        if not one.public_key:
            make_folder(folder / one.node)
            keys[one.node] = load_or_create(folder / one.node / "key.pem")
        public_key = one.public_key or keys[one.node].public_key
        urls = (one.url,) if one.url else ()
        members[one.node] = RosterEntry(one.node, peer_id_of(public_key), public_key, urls, bool(urls), one.examples)
    listed = tuple(members[name] for name in sorted(members))
    roster = Roster(job_name, 1, listed) if held is None else replace(held, version=held.version + 1, peers=listed)
    sealed = {
        "charter.json": sign_document(charter, operator, charter),
        "roster.json": sign_document(roster, operator, charter),
    }
    with storing(job):
        sealed["job.toml"] = job.read_bytes()
    invited = {one.node for one in peers}
    for node in (node for node in members if node in invited or (folder / node).is_dir()):
        make_folder(folder / node)
        for name, text in sealed.items():
            write_file(folder / node / name, text, "document")
    for name, text in sealed.items():
        write_file(folder / name, text, "document")
    return roster


def _held(folder: Path, charter: Charter) -> Roster | None:
    """Return the roster of an earlier call for the same job."""
    path = folder / "charter.json"
    with storing(folder):
        if not path.exists():
            return None
        if open_charter(path.read_bytes()) != charter:
            hint = "choose another folder with --out; a running job's file is never changed"
            raise InvalidJob(
                f"{folder} belongs to another job, or to another form of it", code="peer.config", hint=hint
            )
        return verify_document((folder / "roster.json").read_bytes(), Roster, charter)
