"""Joining a job without a server by an invitation: a newcomer makes a key here, and gets the job's trust documents.

The invitation names the charter by its SHA-256; charter, job and roster must all belong to it, so other machines on the
network do not matter. Nothing is written before all of it is verified.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import InvalidJob, NotAllowed, ShoalError, Unreachable
from shoal.peering.http.roster_updates import read_bundle
from shoal.peering.roster.invitation import InvitationToken, JoinRequest
from shoal.peering.state.peer_state import PeerState
from shoal.runtime.durable_files import make_folder, write_file
from shoal.runtime.http.client import Link
from shoal.runtime.http.coordinator_url import parse
from shoal.trust.documents import Charter, Invitation, Roster, charter_of, open_charter, verify_document
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey, load_or_create

READ_S = 20.0
JOB_BYTES_MAX = 1024 * 1024
BUNDLE_BYTES_MAX = 2 * (JOB_BYTES_MAX + Charter.BYTES_MAX + Roster.BYTES_MAX)


def join(token: InvitationToken, folder: Path, node: str, urls: tuple[str, ...], marker: str) -> None:
    """Make the folder of a newcomer, or have its address changed, by asking the peers of the invitation in turn.

    `marker`: the name of a file that marks a completed join. Raises `ShoalError`: the answer of the last peer.
    """
    _check_folder(token, folder)
    make_folder(folder)
    key = load_or_create(folder / "key.pem")
    with PeerState(folder) as state:
        process_number = state.process_number
    failures: list[ShoalError] = []
    for url in token.urls:
        try:
            documents = _request_documents(
                url, token, key, process_number, JoinRequest(token.invitation, node, key.public_key, urls)
            )
        except ShoalError as error:
            failures.append(error)
            continue
        for name, text in documents.items():
            write_file(folder / name, text, "document")
        write_file(folder / marker, json.dumps({"from": url}).encode(), "document")
        return
    if all(isinstance(error, Unreachable) for error in failures):
        why = f"no peer of the invitation answers: {failures[-1].message}"
        hint = "see that the peer that invited you runs; if its address has changed, ask for a new invitation"
        raise Unreachable(why, code="peer.unreachable", hint=hint)
    raise next(error for error in reversed(failures) if not isinstance(error, Unreachable))


def _check_folder(token: InvitationToken, folder: Path) -> None:
    path = folder / "charter.json"
    if path.is_file() and open_charter(path.read_bytes()).digest != token.charter:
        hint = "give another folder: shoal peer join INVITATION FOLDER"
        raise InvalidJob(f"{folder} belongs to another job", code="peer.config", hint=hint)


def _request_documents(
    url: str, token: InvitationToken, key: SigningKey, process_number: int, joining: JoinRequest
) -> Mapping[str, bytes]:
    """Return the verified documents that the peer at an address sends."""
    path, text = f"/p2p/{token.job}/join", joining.text()
    with Link(url, read_s=READ_S) as link:
        charter = charter_of(link.json("GET", f"/p2p/{token.job}/charter", own=True))
        if charter.digest != token.charter or charter.job != token.job:
            hint = "the peer there takes part in another job of that name: ask for a new invitation"
            raise NotAllowed(f"{url} shows another charter than the invitation's", code="peer.charter", hint=hint)
        verify_document(token.invitation, Invitation, charter)
        peer_id = str(link.json("GET", "/p2p", own=True)["peer_id"])
        request = Signer(key, charter, process_number).request(peer_id, "POST", path, "", sha256(text))
        headers = {**request.headers(), "Content-Length": str(len(text))}
        with link.exchange("POST", path, headers=headers, content=text, own=True) as answer:
            return _verify(read_bundle(answer.read(BUNDLE_BYTES_MAX)), charter, key)


def _verify(documents: Mapping[str, bytes], charter: Charter, key: SigningKey) -> Mapping[str, bytes]:
    """Return the same documents. Raises `ShoalError` unless they belong to the charter and name this key."""
    roster = verify_document(documents["roster.json"], Roster, charter)
    job_sha = hashlib.sha256(documents["job.toml"]).hexdigest()
    if open_charter(documents["charter.json"]) != charter or job_sha != charter.config_sha:
        hint = "the answer was changed on the way, or the peer is broken: ask the one who invited you"
        raise NotAllowed("the documents do not belong to the charter", code="peer.documents", hint=hint)
    if key.public_key not in {peer.public_key for peer in roster.peers}:
        raise NotAllowed("the roster does not name this key", code="peer.documents", hint="try again")
    return documents


def own_host(toward: str = "") -> str:
    """Return the address of this machine that others on its network can call; no packet is sent to find it."""
    host, port = ("192.0.2.1", 9) if not toward else (parse(toward).host, parse(toward).port)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{found}]" if ":" in found else found


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
